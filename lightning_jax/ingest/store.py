"""The store: one durable record of rollouts, calls, spans, rewards and what was sealed.

Mutations return futures that resolve after COMMIT; what a future acknowledged survives a crash of the process. Reads
return values. Any thread may use a Store. One server process owns a SQLite file; PostgreSQL takes the same code by URL.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from lightning_jax import types
from lightning_jax.ingest import (
    calls,
    counts,
    grants,
    policies,
    quarantine,
    rewards,
    rollouts,
    sealed,
    sealing,
    spans,
    upgrade,
)
from lightning_jax.ingest.database import open_engine
from lightning_jax.ingest.errors import StoreRefusal, translated
from lightning_jax.ingest.grants import AttemptGrant
from lightning_jax.ingest.records import call_row, json_text, reward_row, rollout_row
from lightning_jax.ingest.signals import Signal
from lightning_jax.ingest.writer import Transaction, Writer


class Store:
    """Open (or create) the store at ``url``, e.g. ``sqlite:////path/to/store.sqlite``. Close it when done.

    ``clock`` gives unix time in ns. An older schema is upgraded; ValueError for an unusable URL or a newer schema.
    """

    def __init__(self, url: str, *, clock: Callable[[], int] = time.time_ns, upkeep_s: float = 1.0) -> None:
        self.url = url
        self.sealed_signal = Signal()
        self.claimable_signal = Signal()
        self.policy_signal = Signal()
        self._served: types.PolicyVersion | None = None
        self._cache = grants.GrantCache()
        self._write_engine = open_engine(url, writer=True)
        with self._write_engine.begin() as connection:
            upgrade.prepare(connection)
            sealing.renew_leases(Transaction(connection, clock()))
            calls.doubt_deliveries(connection)
        self._read_engine = open_engine(url, writer=False)
        self._writer = Writer(self._write_engine, self._expire, upkeep_s=upkeep_s, clock=clock)

    def close(self) -> None:
        """Commit what is queued and close all connections."""
        self._writer.close()
        self._read_engine.dispose()
        self._write_engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What the policy server needs.

    def record_call(self, call: types.Call) -> Future[None]:
        """Store one call; the future resolves once it is durable.

        Idempotent by call_id. The future raises AttemptEnded for a call of an ended attempt, UnknownAttempt,
        IdentityConflict or StoreUnavailable; ValueError (shapes, JSON) is raised at once.
        """
        return self._writer.submit(partial(calls.record, row=call_row(call)))

    def mark_calls(self, marks: Sequence[types.CallMark]) -> Future[None]:
        """Note which calls were delivered, not delivered, or superseded. Those of ended attempts stay as they are."""
        return self._writer.submit(partial(calls.mark, marks=tuple(marks)))

    def record_call_rows(self, rows: Sequence[Mapping[str, Any]]) -> Future[dict[str, StoreRefusal]]:
        """Store many calls (rows of `records.call_row`), each on its own, by the rules of record_call.

        The future holds call_id → refusal of those that are not stored. One call costs a fraction of record_call.
        """
        return self._writer.submit(partial(calls.record_many, rows=rows))

    def authorize(self, api_key: str) -> AttemptGrant | None:
        """Whose bearer token this is; None for a token nobody was given. May wait for the database: see is_settled."""
        hashed = grants.key_hash(api_key)
        grant = self._cache.by_hash(hashed)
        if grant is not None or not api_key.startswith(grants.KEY_PREFIX) or self._cache.is_nobodys(hashed):
            return grant
        grant = self._read_grant(partial(grants.read_by_hash, hashed=hashed))
        if grant is None:
            self._cache.put_nobodys(hashed)
        return grant

    def is_settled(self, api_key: str) -> bool:
        """Whether memory alone says whose token this is, or that it is nobody's; for event loops."""
        hashed = grants.key_hash(api_key)
        known = self._cache.by_hash(hashed) is not None or self._cache.is_nobodys(hashed)
        return known or not api_key.startswith(grants.KEY_PREFIX)

    def calls_of_request(self, attempt_id: str, request_key: str) -> tuple[types.Call, ...]:
        """The calls stored of an attempt for requests of this digest, by sequence."""
        with self._reading() as connection:
            return calls.of_request(connection, attempt_id, request_key)

    def attempt_grant(self, rollout_id: str, attempt_id: str) -> AttemptGrant | None:
        """The grant of an attempt named by URL path or resource attribute; None where the pair does not exist."""
        if "\0" in attempt_id:
            return None  # no attempt is called so, and PostgreSQL refuses to look
        grant = self._cache.by_attempt(attempt_id)
        if grant is None:
            grant = self._read_grant(partial(grants.read_by_attempt, attempt_id=attempt_id))
        return grant if grant is not None and grant.rollout.rollout_id == rollout_id else None

    # Rollouts and attempts.

    def enqueue_rollouts(self, batch: Sequence[types.Rollout]) -> Future[int]:
        """Queue rollouts in the order given; the future holds how many were new. ValueError for one that cannot run."""
        for rollout in batch:
            rollouts.check_rollout(rollout)
        rows = [rollout_row(rollout) for rollout in batch]
        return self._writer.submit(partial(rollouts.enqueue, rows=rows, claimable=self.claimable_signal))

    def claim(
        self,
        worker: str,
        limit: int,
        lease_s: float,
        base_url_root: str,
        claim_id: str = "",
        rollout_ids: Sequence[str] = (),
    ) -> Future[list[types.Attempt]]:
        """Start attempts of up to ``limit`` queued rollouts, first enqueued first. Lapsed leases are taken back before.

        ``base_url_root`` (http://host:port) is where agents find the policy server. ``rollout_ids``, at most
        MAX_NAMED of them, leaves all others in the queue.
        """
        if len(rollout_ids) > rollouts.MAX_NAMED:
            raise ValueError(f"a claim may name {rollouts.MAX_NAMED} rollouts, got {len(rollout_ids)}: claim in parts")
        if limit < 1 or lease_s <= 0:
            raise ValueError(f"a claim needs limit >= 1 and lease_s > 0, got limit {limit} and lease_s {lease_s}")
        wish = rollouts.Claim(worker, claim_id or uuid.uuid4().hex, limit, lease_s, base_url_root, tuple(rollout_ids))

        def apply(transaction: Transaction) -> list[types.Attempt]:
            self._expire(transaction)
            return rollouts.claim(transaction, wish, self._cache)

        return self._writer.submit(apply)

    def heartbeat(self, attempt_ids: Sequence[str]) -> Future[list[str]]:
        """Extend leases; the future holds the ids that no longer run, whose agents should be stopped."""
        return self._writer.submit(partial(sealing.heartbeat, attempt_ids=tuple(attempt_ids)))

    def complete(self, attempt_id: str, outcome: types.Outcome) -> Future[sealing.Disposition]:
        """End an attempt: "sealed", "requeued" (it failed, attempts are left) or "already_ended" (nothing changed)."""
        if outcome.status not in sealing.STATUSES:
            raise ValueError(f"outcome status is {outcome.status!r}; it must be one of {', '.join(sealing.STATUSES)}")
        json_text(outcome.output, f"output of attempt {attempt_id!r}")
        return self._writer.submit(
            partial(
                sealing.complete,
                attempt_id=attempt_id,
                outcome=outcome,
                cache=self._cache,
                sealed=self.sealed_signal,
                claimable=self.claimable_signal,
            )
        )

    def cancel(self, rollout_ids: Sequence[str], reason: str = "cancelled") -> Future[int]:
        """Seal rollouts as "cancelled", running or not; the future holds how many were still open."""
        return self._writer.submit(
            partial(
                rollouts.cancel,
                rollout_ids=tuple(rollout_ids),
                reason=reason,
                cache=self._cache,
                sealed=self.sealed_signal,
            )
        )

    def cancel_open(self, reason: str) -> Future[int]:
        """Seal every rollout that is not sealed yet; for whoever has the store to himself."""

        def apply(transaction: Transaction) -> int:
            left = rollouts.open_ids(transaction.connection)
            return rollouts.cancel(transaction, left, reason, self._cache, self.sealed_signal)

        return self._writer.submit(apply)

    def rollout_statuses(self, rollout_ids: Sequence[str]) -> list[rollouts.RolloutStatus]:
        """Where rollouts stand; unknown ids are left out."""
        with self._reading() as connection:
            return rollouts.statuses(connection, tuple(rollout_ids))

    # Rewards and spans.

    def record_rewards(self, batch: Sequence[types.Reward]) -> Future[int]:
        """Store rewards, all or none; the future holds how many were new, or raises AttemptEnded or UnknownAttempt."""
        return self._writer.submit(partial(rewards.record, rows=[reward_row(reward) for reward in batch]))

    def record_spans(
        self,
        batch: Sequence[types.Span],
        aside: Sequence[quarantine.Quarantine] = (),
    ) -> Future[int]:
        """Store spans and what was wrong with some; the future holds how many spans were new.

        Unplaced spans follow the placed ones of their trace, where those agree, whichever came first.
        """
        return self._writer.submit(partial(spans.record, spans=tuple(batch), aside=tuple(aside)))

    def call_identities(self, call_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """(rollout_id, attempt_id) of the calls that exist."""
        with self._reading() as connection:
            return calls.identities(connection, tuple(call_ids))

    def trace_owners(self, trace_ids: Sequence[bytes]) -> dict[bytes, set[tuple[str, str]]]:
        """The (rollout_id, attempt_id) pairs that stored spans of each trace were placed in."""
        with self._reading() as connection:
            return spans.owners(connection, tuple(trace_ids))

    def list_calls(self, attempt_id: str) -> tuple[types.Call, ...]:
        """The calls stored of an attempt, by sequence."""
        with self._reading() as connection:
            return calls.of_attempt(connection, attempt_id)

    # The stream of sealed attempts.

    def sealed_after(self, cursor: int, limit: int = 64) -> list[types.SealedAttempt]:
        """Sealed attempts beyond ``cursor``, in order, at most ``limit``."""
        with self._reading() as connection:
            return sealed.after(connection, cursor, limit)

    def wait_sealed(self, cursor: int, timeout_s: float, limit: int = 64) -> list[types.SealedAttempt]:
        """The same, waiting up to ``timeout_s`` for the first."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.sealed_signal.count
            found = self.sealed_after(cursor, limit)
            if found or not self.sealed_signal.wait(seen, deadline - time.monotonic()):
                return found

    def ack(self, consumer: str, cursor: int) -> Future[int]:
        """Note that a consumer is done up to ``cursor``; the future holds the position now held (never moves back)."""
        return self._writer.submit(partial(sealed.acknowledge, consumer=consumer, cursor=cursor))

    def acked(self, consumer: str) -> int:
        """The position up to which a consumer is done; 0 for a new one."""
        with self._reading() as connection:
            return sealed.acknowledged(connection, consumer)

    # Policy versions.

    def check_policy(self, policy: types.PolicyVersion) -> None:
        """Raise IdentityConflict where the version number already stands for other weights."""
        with self._reading() as connection:
            policies.check(connection, policy)

    def latest_policy(self) -> types.PolicyVersion | None:
        """The version published last by this process, else the highest on record; None before the first."""
        if self._served is not None:
            return self._served
        with self._reading() as connection:
            return policies.latest(connection)

    def record_policy(self, policy: types.PolicyVersion) -> Future[None]:
        """Note that a version was published; whoever watches is told."""

        def apply(transaction: Transaction) -> None:
            policies.record(transaction, policy)
            transaction.after_commit(serve)

        def serve() -> None:
            self._served = policy
            self.policy_signal.notify()

        return self._writer.submit(apply)

    # What metrics show.

    def quarantined(self) -> dict[tuple[str, str], int]:
        """How much is put aside, by (kind, reason)."""
        with self._reading() as connection:
            return quarantine.counts(connection)

    def counts(self) -> counts.StoreCounts:
        """How much of everything is stored."""
        with self._reading() as connection:
            return counts.read(connection)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A snapshot to read from. What the database says inside comes out as StoreUnavailable or ValueError."""
        try:
            with self._read_engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise translated(error, "read") from error

    def _read_grant(self, read: Callable[[Connection], tuple[AttemptGrant, bytes] | None]) -> AttemptGrant | None:
        changes = self._cache.changes
        with self._reading() as connection:
            found = read(connection)
        if found is None:
            return None
        self._cache.put_read(*found, changes)
        return found[0]

    def _expire(self, transaction: Transaction) -> int:
        return sealing.expire_leases(transaction, self._cache, self.sealed_signal, self.claimable_signal)
