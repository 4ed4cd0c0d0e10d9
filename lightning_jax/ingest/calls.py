"""Calls: the record of what the engine sampled. Writing is idempotent by call_id and fenced by the attempt's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.errors import AttemptEnded, IdentityConflict, UnknownAttempt
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


def record(transaction: Transaction, row: Mapping[Any, Any]) -> Rejected | None:
    """Insert one call. A call of an ended attempt is put aside and its caller gets AttemptEnded."""
    connection = transaction.connection
    before = connection.execute(_BEFORE, {"call": row["call_id"]}).one_or_none()
    if before is not None:
        if before.attempt_id != row["attempt_id"] or bytes(before.response_ids) != row["response_ids"]:
            raise IdentityConflict(
                f"call {row['call_id']!r} is stored for attempt {before.attempt_id!r} with "
                f"{len(before.response_ids) // 4} tokens and came again for {row['attempt_id']!r} with "
                f"{len(row['response_ids']) // 4} or with other tokens; "
                f"every generation needs an id of its own"
            )
        return None
    attempt = connection.execute(_ATTEMPT, {"attempt": row["attempt_id"]}).one_or_none()
    if attempt is None or attempt.rollout_id != row["rollout_id"]:
        raise UnknownAttempt(
            f"call {row['call_id']!r} names rollout {row['rollout_id']!r} attempt {row['attempt_id']!r}; "
            f"no such attempt was claimed"
        )
    if attempt.status != "running":
        late = f"attempt {row['attempt_id']!r} has ended ({attempt.status}); call {row['call_id']!r} came after"
        put_aside(transaction, [Quarantine("call", row["call_id"], "late_call", late)])
        return Rejected(AttemptEnded(late))
    connection.execute(_INSERT, row)
    return None


def of_attempt(connection: Connection, attempt_id: str) -> tuple[types.Call, ...]:
    """The calls of one attempt, by sequence."""
    query = select(schema.calls).where(schema.calls.c.attempt_id == attempt_id)
    query = query.order_by(schema.calls.c.sequence, schema.calls.c.started_ns, schema.calls.c.call_id)
    return tuple(call_of(row) for row in connection.execute(query).mappings())


def identities(connection: Connection, call_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(rollout_id, attempt_id) of the calls that exist."""
    calls = schema.calls
    found: dict[str, tuple[str, str]] = {}
    for start in range(0, len(call_ids), 500):
        query = select(calls.c.call_id, calls.c.rollout_id, calls.c.attempt_id)
        query = query.where(calls.c.call_id.in_(call_ids[start : start + 500]))
        found.update({row.call_id: (row.rollout_id, row.attempt_id) for row in connection.execute(query)})
    return found
