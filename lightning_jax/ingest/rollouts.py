"""The queue of rollouts: enqueue, claim under a lease, cancel. All run inside the writer's transaction.

Invariant: a rollout has at most one running attempt, and is claimed in the order of enqueue; a retry keeps its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, select, update

from lightning_jax import types
from lightning_jax.ingest import schema, spans
from lightning_jax.ingest.database import insert_new
from lightning_jax.ingest.errors import IdentityConflict
from lightning_jax.ingest.grants import AttemptGrant, GrantCache, key_hash, new_key
from lightning_jax.ingest.records import rollout_of
from lightning_jax.ingest.sealing import end_attempt, seal
from lightning_jax.ingest.signals import Signal
from lightning_jax.ingest.writer import Transaction

MAX_NAMED = 500  # rollouts a claim may name; databases bound the number of parameters of one statement
OWN = "client-"  # a rollout whose id begins so is its maker's: only a claim that names it gets it
# Ids travel in URL paths and gRPC metadata as they are, so that no two spellings name the same rollout.
_ROLLOUT_ID = re.compile(r"[A-Za-z0-9._~:@+=-]{1,200}")

# Built once: composing a statement costs more than running it, and every rollout passes here.
_QUEUED = (
    select(schema.rollouts)
    .where(schema.rollouts.c.state == "queued")
    .order_by(schema.rollouts.c.position)
    .limit(bindparam("most", type_=Integer))
    .with_for_update(skip_locked=True)
)
_QUEUED_NAMED = _QUEUED.where(schema.rollouts.c.rollout_id.in_(bindparam("named", expanding=True)))
_QUEUED_FREE = _QUEUED.where(~schema.rollouts.c.rollout_id.startswith(OWN))
_CLAIMED_BEFORE = (
    select(schema.rollouts)
    .join(schema.attempts, schema.attempts.c.rollout_id == schema.rollouts.c.rollout_id)
    .where(schema.attempts.c.claim_id == bindparam("claim"), schema.attempts.c.status == "running")
    .order_by(schema.rollouts.c.position)
)
_START = schema.attempts.insert()
_SET_ATTEMPT = update(schema.attempts).where(schema.attempts.c.attempt_id == bindparam("attempt"))
_SET_ROLLOUT = update(schema.rollouts).where(schema.rollouts.c.rollout_id == bindparam("rollout"))


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """Where a rollout stands: queued, running or sealed, with its number of attempts and, once sealed, its status."""

    rollout_id: str
    state: str
    attempts: int
    status: str  # AttemptStatus once sealed, else ""


def check_rollout(rollout: types.Rollout) -> None:
    """Raise ValueError for a rollout that could not be run."""
    if not _ROLLOUT_ID.fullmatch(rollout.rollout_id) or set(rollout.rollout_id) == {"."}:
        raise ValueError(
            f"rollout_id is {rollout.rollout_id!r}; it becomes part of a URL: use 1 to 200 of A-Z a-z 0-9 ._~:@+=-"
        )
    if rollout.max_attempts < 1:
        raise ValueError(f"rollout {rollout.rollout_id!r} has max_attempts {rollout.max_attempts}; 1 is the least")
    if not 0 <= rollout.seed < 2**63:
        raise ValueError(f"rollout {rollout.rollout_id!r} has seed {rollout.seed}; it must lie in 0..2**63-1")
    if rollout.mode not in ("train", "eval"):
        raise ValueError(f"rollout {rollout.rollout_id!r} has mode {rollout.mode!r}; it must be 'train' or 'eval'")


def enqueue(transaction: Transaction, rows: Sequence[dict[str, Any]], claimable: Signal) -> int:
    """Append rollouts to the queue; those already there are left alone. Returns how many were new.

    Raises IdentityConflict where an id came before for another task, sample or seed.
    """
    connection = transaction.connection
    ids = [row["rollout_id"] for row in rows]
    known = {row["rollout_id"]: row for row in _rows(connection, ids)}
    for row in rows:
        before = known.get(row["rollout_id"])
        if before is not None and any(row[c] != before[c] for c in ("task_id", "sample", "mode", "seed", "step")):
            raise IdentityConflict(
                f"rollout {row['rollout_id']!r} was enqueued before as {_described(before)}, now as {_described(row)}; "
                f"give each rollout an id of its own"
            )
    fresh = {row["rollout_id"]: row for row in rows if row["rollout_id"] not in known}
    added = insert_new(connection, schema.rollouts, list(fresh.values()))
    if added:
        transaction.after_commit(claimable.notify)
    return added


def _described(row: Mapping[Any, Any]) -> str:
    return f"task {row['task_id']!r} sample {row['sample']} {row['mode']} seed {row['seed']} step {row['step']}"


@dataclass(frozen=True, slots=True)
class Claim:
    """Who claims how much. ``claim_id`` makes a repeated request return the same attempts (with fresh keys)."""

    worker_id: str
    claim_id: str
    limit: int
    lease_s: float
    base_url_root: str  # http://host:port
    rollout_ids: tuple[str, ...] = ()  # only these, if any are named


def claim(transaction: Transaction, wish: Claim, cache: GrantCache) -> list[types.Attempt]:
    """Start an attempt for each of the first ``limit`` queued rollouts, of those wished for."""
    connection = transaction.connection
    repeated = connection.execute(_CLAIMED_BEFORE, {"claim": wish.claim_id}).mappings().all()
    if repeated:
        return [_issue(transaction, row, row["attempts"], wish, cache, again=True) for row in repeated]
    if wish.rollout_ids:
        found = connection.execute(_QUEUED_NAMED, {"most": wish.limit, "named": wish.rollout_ids})
    else:
        found = connection.execute(_QUEUED_FREE, {"most": wish.limit})
    queued = found.mappings()
    issued = [_issue(transaction, row, row["attempts"] + 1, wish, cache, again=False) for row in queued.all()]
    if issued:
        spans.adopt_named(transaction, {attempt.attempt_id: attempt.rollout.rollout_id for attempt in issued})
    return issued


def _issue(
    transaction: Transaction, row: Mapping[Any, Any], number: int, wish: Claim, cache: GrantCache, *, again: bool
) -> types.Attempt:
    rollout = rollout_of(row)
    attempt_id = f"{rollout.rollout_id}.{number}"
    api_key = new_key()
    hashed = key_hash(api_key)
    lease = {"lease_s": wish.lease_s, "lease_until_ns": transaction.now_ns + int(wish.lease_s * 1e9)}
    if again:
        transaction.connection.execute(_SET_ATTEMPT, {"attempt": attempt_id, "key_hash": hashed, **lease})
    else:
        started = {"worker_id": wish.worker_id, "claim_id": wish.claim_id, "started_ns": transaction.now_ns}
        identity = {"attempt_id": attempt_id, "rollout_id": rollout.rollout_id, "number": number, "key_hash": hashed}
        transaction.connection.execute(_START, {**identity, **started, **lease, "status": "running"})
        moved = {"rollout": rollout.rollout_id, "state": "running", "attempts": number}
        transaction.connection.execute(_SET_ROLLOUT, moved)
    transaction.after_commit(lambda: cache.put_issued(AttemptGrant(rollout, attempt_id, "running"), hashed))
    return types.Attempt(
        rollout=rollout,
        attempt_id=attempt_id,
        number=number,
        base_url=f"{wish.base_url_root.rstrip('/')}/rollout/{rollout.rollout_id}/attempt/{attempt_id}/v1",
        api_key=api_key,
        lease_s=wish.lease_s,
    )


def cancel(transaction: Transaction, rollout_ids: Sequence[str], reason: str, cache: GrantCache, sealed: Signal) -> int:
    """End the rollouts that are not sealed yet, whatever they are doing. Returns how many that were."""
    connection = transaction.connection
    outcome = types.Outcome("cancelled", {}, reason)
    pending = [row for row in _rows(connection, rollout_ids) if row["state"] != "sealed"]
    for row in pending:
        if row["state"] == "running":
            attempt_id = f"{row['rollout_id']}.{row['attempts']}"
            end_attempt(transaction, attempt_id, outcome, cache)
        else:
            attempt_id = ""
        seal(transaction, row["rollout_id"], attempt_id, outcome, sealed)
    return len(pending)


def open_ids(connection: Connection) -> list[str]:
    """Ids of the rollouts that are queued or running."""
    table = schema.rollouts
    return list(connection.execute(select(table.c.rollout_id).where(table.c.state != "sealed")).scalars())


def statuses(connection: Connection, rollout_ids: Sequence[str]) -> list[RolloutStatus]:
    """Where the rollouts stand; unknown ids are left out."""
    ends = {
        row.rollout_id: row.status
        for part in _parts(rollout_ids)
        for row in connection.execute(
            select(schema.sealed.c.rollout_id, schema.sealed.c.status).where(schema.sealed.c.rollout_id.in_(part))
        )
    }
    return [
        RolloutStatus(row["rollout_id"], row["state"], row["attempts"], ends.get(row["rollout_id"], ""))
        for row in _rows(connection, rollout_ids)
    ]


def _rows(connection: Connection, rollout_ids: Sequence[str]) -> list[Mapping[Any, Any]]:
    found: list[Mapping[Any, Any]] = []
    for part in _parts(rollout_ids):
        query = select(schema.rollouts).where(schema.rollouts.c.rollout_id.in_(part))
        found.extend(connection.execute(query.order_by(schema.rollouts.c.position)).mappings())
    return found


def _parts(ids: Sequence[str], size: int = 500) -> list[Sequence[str]]:
    # Databases bound the number of parameters of one statement.
    return [ids[start : start + size] for start in range(0, len(ids), size)]
