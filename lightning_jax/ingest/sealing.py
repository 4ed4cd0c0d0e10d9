"""How an attempt ends: heartbeat, completion, lapse of its lease, and the seal that fixes a rollout's record.

Invariant: once an attempt has ended nothing that comes later changes its record, and a rollout is sealed exactly once.
An attempt that did not succeed gives its rollout back to the queue while attempts are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from sqlalchemy import bindparam, func, select, update

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.database import lock
from lightning_jax.ingest.errors import UnknownAttempt
from lightning_jax.ingest.grants import GrantCache
from lightning_jax.ingest.records import column_text, json_text
from lightning_jax.ingest.signals import Signal
from lightning_jax.ingest.writer import Transaction

Disposition = Literal["sealed", "requeued", "already_ended"]
STATUSES: tuple[types.AttemptStatus, ...] = ("succeeded", "failed", "timeout", "crashed", "cancelled", "lost")
_RETRIED = ("failed", "timeout", "crashed", "lost")

# Built once: composing a statement costs more than running it, and every attempt passes here.
_LEASE = select(schema.attempts.c.lease_s).where(
    schema.attempts.c.attempt_id == bindparam("attempt"), schema.attempts.c.status == "running"
)
_RUNNING = select(schema.attempts.c.attempt_id, schema.attempts.c.lease_s).where(schema.attempts.c.status == "running")
_LAPSED = select(schema.attempts.c.attempt_id, schema.attempts.c.worker_id, schema.attempts.c.lease_s).where(
    schema.attempts.c.status == "running", schema.attempts.c.lease_until_ns < bindparam("now")
)
_ENDING = (
    select(
        schema.attempts.c.status, schema.attempts.c.number, schema.rollouts.c.rollout_id, schema.rollouts.c.max_attempts
    )
    .join(schema.rollouts, schema.rollouts.c.rollout_id == schema.attempts.c.rollout_id)
    .where(schema.attempts.c.attempt_id == bindparam("attempt"))
    .with_for_update(of=schema.attempts)
)
_SET_ATTEMPT = update(schema.attempts).where(schema.attempts.c.attempt_id == bindparam("attempt"))
_SET_ROLLOUT = update(schema.rollouts).where(schema.rollouts.c.rollout_id == bindparam("rollout"))
_LAST = {
    name: select(func.coalesce(func.max(table.c.id), 0)).where(table.c.attempt_id == bindparam("attempt"))
    for name, table in (("last_span", schema.spans), ("last_reward", schema.rewards))
}
_SEAL = schema.sealed.insert()


def heartbeat(transaction: Transaction, attempt_ids: Sequence[str]) -> list[str]:
    """Extend the leases of the attempts that still run; returns the ids of the others: their agents should stop."""
    ended: list[str] = []
    for attempt_id in attempt_ids:
        lease_s = transaction.connection.execute(_LEASE, {"attempt": attempt_id}).scalar_one_or_none()
        if lease_s is None:
            ended.append(attempt_id)
        else:
            _renew(transaction, attempt_id, lease_s)
    return ended


def _renew(transaction: Transaction, attempt_id: str, lease_s: float) -> None:
    until = transaction.now_ns + int(lease_s * 1e9)
    transaction.connection.execute(_SET_ATTEMPT, {"attempt": attempt_id, "lease_until_ns": until})


def complete(
    transaction: Transaction,
    attempt_id: str,
    outcome: types.Outcome,
    cache: GrantCache,
    sealed: Signal,
    claimable: Signal,
) -> Disposition:
    """End an attempt as its runner reports it. A second report changes nothing. Raises UnknownAttempt."""
    row = transaction.connection.execute(_ENDING, {"attempt": attempt_id}).one_or_none()
    if row is None:
        raise UnknownAttempt(f"no attempt {attempt_id!r}; attempts come from claiming a rollout")
    if row.status != "running":
        return "already_ended"
    end_attempt(transaction, attempt_id, outcome, cache)
    if outcome.status in _RETRIED and row.number < row.max_attempts:
        transaction.connection.execute(_SET_ROLLOUT, {"rollout": row.rollout_id, "state": "queued"})
        transaction.after_commit(claimable.notify)
        return "requeued"
    seal(transaction, row.rollout_id, attempt_id, outcome, sealed)
    return "sealed"


def expire_leases(transaction: Transaction, cache: GrantCache, sealed: Signal, claimable: Signal) -> int:
    """End the attempts whose runner went silent as "lost"; returns how many."""
    lapsed = transaction.connection.execute(_LAPSED, {"now": transaction.now_ns}).all()
    for row in lapsed:
        reason = f"no heartbeat of worker {row.worker_id!r} within its lease of {row.lease_s:g} s"
        complete(transaction, row.attempt_id, types.Outcome("lost", {}, reason), cache, sealed, claimable)
    return len(lapsed)


def renew_leases(transaction: Transaction) -> None:
    """Give every running attempt a whole lease: while the server was down no heartbeat could arrive."""
    for row in transaction.connection.execute(_RUNNING).all():
        _renew(transaction, row.attempt_id, row.lease_s)


def end_attempt(transaction: Transaction, attempt_id: str, outcome: types.Outcome, cache: GrantCache) -> None:
    """Write the end of a running attempt."""
    values = {
        "status": outcome.status,
        "ended_ns": transaction.now_ns,
        "output": json_text(outcome.output, f"output of attempt {attempt_id!r}"),
        "reason": column_text(outcome.reason),
    }
    transaction.connection.execute(_SET_ATTEMPT, {"attempt": attempt_id, **values})
    transaction.after_commit(lambda: cache.set_status(attempt_id, outcome.status))


def seal(transaction: Transaction, rollout_id: str, attempt_id: str, outcome: types.Outcome, sealed: Signal) -> None:
    """Fix the record of a rollout: what is stored of its last attempt now, and nothing after."""
    connection = transaction.connection
    lock(connection, "sealed")  # positions must become visible in order, or a reader would pass one over
    last = {
        name: connection.execute(query, {"attempt": attempt_id}).scalar_one() if attempt_id else 0
        for name, query in _LAST.items()
    }
    values = {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "status": outcome.status,
        "output": json_text(outcome.output, f"output of rollout {rollout_id!r}"),
        "reason": column_text(outcome.reason),
        "sealed_ns": transaction.now_ns,
    }
    connection.execute(_SEAL, values | last)
    connection.execute(_SET_ROLLOUT, {"rollout": rollout_id, "state": "sealed"})
    transaction.after_commit(sealed.notify)


def outcome_of(row: Mapping[Any, Any], output: Mapping[str, Any]) -> types.Outcome:
    """The outcome in a row of table sealed."""
    return types.Outcome(cast(types.AttemptStatus, row["status"]), output, row["reason"])
