"""Calls: the record of what the engine sampled. Writing is idempotent by call_id and fenced by the attempt's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Update, bindparam, exists, select, update

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.errors import AttemptEnded, IdentityConflict, StoreRefusal, UnknownAttempt
from lightning_jax.ingest.quarantine import Quarantine, put_aside
from lightning_jax.ingest.records import call_of
from lightning_jax.ingest.writer import Rejected, Transaction

# Built once: composing a statement costs more than running it, and every LLM call passes here.
_BEFORE = select(schema.calls.c.attempt_id, schema.calls.c.response_ids).where(
    schema.calls.c.call_id == bindparam("call")
)
# FOR SHARE (PostgreSQL): another server cannot end the attempt between this look and the insert.
_ATTEMPT = (
    select(schema.attempts.c.rollout_id, schema.attempts.c.status)
    .where(schema.attempts.c.attempt_id == bindparam("attempt"))
    .with_for_update(read=True)
)
_INSERT = schema.calls.insert()
_STORED = select(schema.calls.c.call_id, schema.calls.c.attempt_id, schema.calls.c.response_ids).where(
    schema.calls.c.call_id.in_(bindparam("ids", expanding=True))
)
_STANDING = (
    select(schema.attempts.c.attempt_id, schema.attempts.c.rollout_id, schema.attempts.c.status)
    .where(schema.attempts.c.attempt_id.in_(bindparam("ids", expanding=True)))
    .with_for_update(read=True)
)
_OF_ATTEMPT = (
    select(schema.calls)
    .where(schema.calls.c.attempt_id == bindparam("attempt"))
    .order_by(schema.calls.c.sequence, schema.calls.c.started_ns, schema.calls.c.call_id)
)
_OF_REQUEST = _OF_ATTEMPT.where(schema.calls.c.request_key == bindparam("key"))
# Marks stop where the attempt does: what was sealed never changes.
_RUNNING = exists().where(
    schema.attempts.c.attempt_id == schema.calls.c.attempt_id, schema.attempts.c.status == "running"
)
_MARKED = update(schema.calls).where(schema.calls.c.call_id == bindparam("call"), _RUNNING)
_DELIVERED = _MARKED.values(delivered_ns=bindparam("time"))
_UNDELIVERED = _MARKED.where(schema.calls.c.delivered_ns == 0).values(delivered_ns=bindparam("time"))
_SUPERSEDED = _MARKED.values(superseded_by=bindparam("other"))
# Those whose server went away before it could say; calls without a key were recorded by somebody who never says.
_UNTOLD = (
    update(schema.calls)
    .where(
        schema.calls.c.attempt_id.in_(
            select(schema.attempts.c.attempt_id).where(schema.attempts.c.status == "running")
        ),
        schema.calls.c.delivered_ns == 0,
        schema.calls.c.request_key != "",
    )
    .values(delivered_ns=-1)
)


def record(transaction: Transaction, row: Mapping[Any, Any]) -> Rejected | None:
    """Insert one call. A call of an ended attempt is put aside and its caller gets AttemptEnded."""
    connection = transaction.connection
    before = connection.execute(_BEFORE, {"call": row["call_id"]}).one_or_none()
    if before is not None:
        if before.attempt_id != row["attempt_id"] or bytes(before.response_ids) != row["response_ids"]:
            raise _conflict(row, before.attempt_id, before.response_ids)
        return None
    attempt = connection.execute(_ATTEMPT, {"attempt": row["attempt_id"]}).one_or_none()
    if attempt is None or attempt.rollout_id != row["rollout_id"]:
        raise _unknown(row)
    if attempt.status != "running":
        late = _late(row, attempt.status)
        put_aside(transaction, [Quarantine("call", row["call_id"], "late_call", late)])
        return Rejected(AttemptEnded(late))
    connection.execute(_INSERT, row)
    return None


def record_many(transaction: Transaction, rows: Sequence[Mapping[Any, Any]]) -> dict[str, StoreRefusal]:
    """Insert calls, each on its own; returns call_id → why it was refused. Two reads and one insert, however many."""
    connection = transaction.connection
    known = _stored(connection, [row["call_id"] for row in rows])
    attempts = _attempts_of(connection, sorted({row["attempt_id"] for row in rows}))
    fresh: dict[str, Mapping[Any, Any]] = {}
    late: dict[str, str] = {}
    refused: dict[str, StoreRefusal] = {}
    for row in rows:
        call_id = row["call_id"]
        before = known.get(call_id) or _identity_of(fresh.get(call_id))
        if before is not None:
            if before != _identity_of(row):
                refused[call_id] = _conflict(row, *before)
            continue
        rollout_id, status = attempts.get(row["attempt_id"], (None, ""))
        if rollout_id != row["rollout_id"]:
            refused[call_id] = _unknown(row)
        elif status != "running":
            late[call_id] = _late(row, status)
        else:
            fresh[call_id] = row
    if late:
        put_aside(transaction, [Quarantine("call", call_id, "late_call", text) for call_id, text in late.items()])
    if fresh:
        connection.execute(_INSERT, list(fresh.values()))
    return refused | {call_id: AttemptEnded(text) for call_id, text in late.items()}


def mark(transaction: Transaction, marks: Sequence[types.CallMark]) -> None:
    """Note what became of calls. A mark on a call of an ended attempt, or of none, changes nothing."""
    by_kind: dict[Update, list[dict[str, Any]]] = {_DELIVERED: [], _UNDELIVERED: [], _SUPERSEDED: []}
    for one in marks:
        if one.delivered_ns:
            kind = _DELIVERED if one.delivered_ns > 0 else _UNDELIVERED
            by_kind[kind].append({"call": one.call_id, "time": one.delivered_ns})
        if one.superseded_by:
            by_kind[_SUPERSEDED].append({"call": one.call_id, "other": one.superseded_by})
    for statement, values in by_kind.items():
        if values:
            transaction.connection.execute(statement, values)


def doubt_deliveries(connection: Connection) -> None:
    """Take the calls of running attempts whose delivery nobody told of for undelivered: their server has ended."""
    connection.execute(_UNTOLD)


def _identity_of(row: Mapping[Any, Any] | None) -> tuple[str, bytes] | None:
    return None if row is None else (row["attempt_id"], bytes(row["response_ids"]))


def _stored(connection: Connection, call_ids: Sequence[str]) -> dict[str, tuple[str, bytes]]:
    """(attempt id, response ids as bytes) of the calls that exist."""
    found: dict[str, tuple[str, bytes]] = {}
    for start in range(0, len(call_ids), 500):
        for row in connection.execute(_STORED, {"ids": call_ids[start : start + 500]}):
            found[row.call_id] = (row.attempt_id, bytes(row.response_ids))
    return found


def _attempts_of(connection: Connection, attempt_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(rollout id, status) of attempts, held as they are until the transaction ends (see _ATTEMPT)."""
    found: dict[str, tuple[str, str]] = {}
    for start in range(0, len(attempt_ids), 500):
        for row in connection.execute(_STANDING, {"ids": attempt_ids[start : start + 500]}):
            found[row.attempt_id] = (row.rollout_id, row.status)
    return found


def _conflict(row: Mapping[Any, Any], attempt_id: str, response_ids: bytes) -> IdentityConflict:
    return IdentityConflict(
        f"call {row['call_id']!r} is stored for attempt {attempt_id!r} with "
        f"{len(response_ids) // 4} tokens and came again for {row['attempt_id']!r} with "
        f"{len(row['response_ids']) // 4} or with other tokens; every generation needs an id of its own"
    )


def _unknown(row: Mapping[Any, Any]) -> UnknownAttempt:
    return UnknownAttempt(
        f"call {row['call_id']!r} names rollout {row['rollout_id']!r} attempt {row['attempt_id']!r}; "
        f"no such attempt was claimed"
    )


def _late(row: Mapping[Any, Any], status: str) -> str:
    return f"attempt {row['attempt_id']!r} has ended ({status}); call {row['call_id']!r} came after"


def of_attempt(connection: Connection, attempt_id: str) -> tuple[types.Call, ...]:
    """The calls of one attempt, by sequence."""
    return tuple(call_of(row) for row in connection.execute(_OF_ATTEMPT, {"attempt": attempt_id}).mappings())


def of_request(connection: Connection, attempt_id: str, request_key: str) -> tuple[types.Call, ...]:
    """The calls of one attempt that answered requests of this digest, by sequence."""
    values = {"attempt": attempt_id, "key": request_key}
    return tuple(call_of(row) for row in connection.execute(_OF_REQUEST, values).mappings())


def identities(connection: Connection, call_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(rollout_id, attempt_id) of the calls that exist."""
    calls = schema.calls
    found: dict[str, tuple[str, str]] = {}
    for start in range(0, len(call_ids), 500):
        query = select(calls.c.call_id, calls.c.rollout_id, calls.c.attempt_id)
        query = query.where(calls.c.call_id.in_(call_ids[start : start + 500]))
        found.update({row.call_id: (row.rollout_id, row.attempt_id) for row in connection.execute(query)})
    return found
