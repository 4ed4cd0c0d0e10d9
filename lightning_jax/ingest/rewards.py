"""Rewards that clients report: idempotent by reward_id, refused once the attempt has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.database import insert_new
from lightning_jax.ingest.errors import AttemptEnded, IdentityConflict, UnknownAttempt
from lightning_jax.ingest.quarantine import Quarantine, put_aside
from lightning_jax.ingest.records import reward_of
from lightning_jax.ingest.writer import Rejected, Transaction

# Built once: composing a statement costs more than running it, and learners ask for each rollout.
_OF_ATTEMPT = (
    select(schema.rewards)
    .where(schema.rewards.c.attempt_id == bindparam("attempt"), schema.rewards.c.id <= bindparam("last"))
    .order_by(schema.rewards.c.id)
)


def record(transaction: Transaction, rows: Sequence[dict[str, Any]]) -> int | Rejected:
    """Insert the rewards that are new; all of them or none. Returns how many were new.

    A row without attempt_id goes to the attempt of its rollout that runs now. Raises UnknownAttempt, and
    IdentityConflict where an id came before for something else, stored or in the same batch; a reward of an ended
    attempt is put aside and the caller gets AttemptEnded.
    """
    connection = transaction.connection
    known = _known(connection, [row["reward_id"] for row in rows])
    fresh: dict[str, dict[str, Any]] = {}
    for row in rows:
        before = known.get(row["reward_id"]) or fresh.get(row["reward_id"])
        if before is None:
            fresh[row["reward_id"]] = dict(row)
        elif not _says_the_same(row, before):
            raise IdentityConflict(
                f"reward {row['reward_id']!r} is known as {_described(before)} and came again as {_described(row)}; "
                f"every reward needs an id of its own"
            )
    for row in fresh.values():
        attempt = _attempt(connection, row["rollout_id"], row["attempt_id"])
        if attempt is None:
            raise UnknownAttempt(
                f"reward {row['reward_id']!r} names rollout {row['rollout_id']!r} attempt {row['attempt_id']!r}; "
                f"no such attempt was claimed"
            )
        row["attempt_id"], status = attempt
        if status != "running":
            put_aside(transaction, [Quarantine("reward", row["reward_id"], "late_reward", row["attempt_id"])])
            return Rejected(
                AttemptEnded(
                    f"attempt {row['attempt_id']!r} has ended ({status}); reward {row['reward_id']!r} came after: "
                    f"report rewards before the attempt is completed"
                )
            )
    return insert_new(connection, schema.rewards, list(fresh.values()))


def of_attempt(connection: Connection, attempt_id: str, last: int) -> tuple[types.Reward, ...]:
    """The rewards of one attempt that were stored up to row ``last``, in the order they came."""
    rows = connection.execute(_OF_ATTEMPT, {"attempt": attempt_id, "last": last}).mappings()
    return tuple(reward_of(row) for row in rows)


def _known(connection: Connection, reward_ids: Sequence[str]) -> dict[str, Mapping[Any, Any]]:
    """The rewards that are stored, by id."""
    table = schema.rewards
    found: dict[str, Mapping[Any, Any]] = {}
    for start in range(0, len(reward_ids), 500):
        query = select(table).where(table.c.reward_id.in_(reward_ids[start : start + 500]))
        found.update({row["reward_id"]: row for row in connection.execute(query).mappings()})
    return found


def _says_the_same(row: Mapping[Any, Any], before: Mapping[Any, Any]) -> bool:
    """Whether a reward is one that came before. Who named no attempt meant that of the first time."""
    return _content(row) == _content(before) and (
        not row["attempt_id"] or not before["attempt_id"] or row["attempt_id"] == before["attempt_id"]
    )


def _content(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    value = row["value"]
    known = None if value is None or value != value else value  # SQLite keeps no NaN: it reads as NULL
    return row["rollout_id"], row["call_id"], known, json.dumps(json.loads(row["components"]), sort_keys=True)


def _described(row: Mapping[Any, Any]) -> str:
    return (
        f"{row['value']} {row['components']} of rollout {row['rollout_id']!r} attempt {row['attempt_id']!r} "
        f"call {row['call_id']!r}"
    )


def _attempt(connection: Connection, rollout_id: str, attempt_id: str) -> tuple[str, str] | None:
    attempts = schema.attempts
    query = select(attempts.c.attempt_id, attempts.c.status).where(attempts.c.rollout_id == rollout_id)
    if attempt_id:
        query = query.where(attempts.c.attempt_id == attempt_id)
    query = query.order_by(attempts.c.number.desc()).limit(1).with_for_update(read=True)
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.attempt_id, row.status)
