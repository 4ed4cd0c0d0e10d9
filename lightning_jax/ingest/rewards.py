"""Rewards that clients report: idempotent by reward_id, refused once the attempt has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.database import insert_new
from lightning_jax.ingest.errors import AttemptEnded, UnknownAttempt
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

    A row without attempt_id goes to the attempt of its rollout that runs now. Raises UnknownAttempt; a reward of an
    ended attempt is put aside and the caller gets AttemptEnded.
    """
    connection = transaction.connection
    known = _known(connection, [row["reward_id"] for row in rows])
    fresh = {row["reward_id"]: dict(row) for row in rows if row["reward_id"] not in known}
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


def _known(connection: Connection, reward_ids: Sequence[str]) -> set[str]:
    table = schema.rewards
    found: set[str] = set()
    for start in range(0, len(reward_ids), 500):
        query = select(table.c.reward_id).where(table.c.reward_id.in_(reward_ids[start : start + 500]))
        found.update(connection.execute(query).scalars())
    return found


def _attempt(connection: Connection, rollout_id: str, attempt_id: str) -> tuple[str, str] | None:
    attempts = schema.attempts
    query = select(attempts.c.attempt_id, attempts.c.status).where(attempts.c.rollout_id == rollout_id)
    if attempt_id:
        query = query.where(attempts.c.attempt_id == attempt_id)
    query = query.order_by(attempts.c.number.desc()).limit(1).with_for_update(read=True)
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.attempt_id, row.status)
