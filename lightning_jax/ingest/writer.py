"""One thread that writes, many callers that wait: group commit.

Invariant: a future resolves with a result only after the COMMIT of its operation. Operations that queue up while
a transaction is being synced share the next, so a thousand writers pay for a handful of fsyncs. An operation that fails
never takes its neighbours along: refusals roll back to a savepoint, anything unforeseen reruns the group one by one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from lightning_jax.ingest.errors import StoreError, StoreRefusal, StoreUnavailable, translated

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_GROUP = 256


@dataclass
class Transaction:
    """What an operation sees: the connection, the time of the transaction, and hooks that run once it is durable."""

    connection: Connection
    now_ns: int
    committed: list[Callable[[], None]] = field(default_factory=list)

    def after_commit(self, hook: Callable[[], None]) -> None:
        """Run ``hook`` in the writer's thread after COMMIT and before the future resolves."""
        self.committed.append(hook)


@dataclass(frozen=True)
class Rejected:
    """Returned by an operation whose own writes must stay (a quarantine row) while its caller gets ``error``."""

    error: StoreRefusal


@dataclass(frozen=True)
class _Operation:
    apply: Callable[[Transaction], Any]
    future: Future[Any]


class Writer:
    """The writing thread over one engine. ``upkeep`` runs as an operation of its own every ``upkeep_s`` seconds."""

    def __init__(
        self,
        engine: Engine,
        upkeep: Callable[[Transaction], object],
        *,
        upkeep_s: float = 1.0,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._engine = engine
        self._upkeep = upkeep
        self._upkeep_s = upkeep_s
        self._clock = clock
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ingest-writer", daemon=True)
        self._thread.start()

    def submit(self, apply: Callable[[Transaction], T | Rejected]) -> Future[T]:
        """Queue ``apply``; it may run twice (a failed group is rerun), so it must touch nothing but the transaction.

        The future fails with a StoreError. It cannot be cancelled: a caller that leaves does not undo what it asked.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                future.set_exception(StoreUnavailable("the store is closed"))
            else:
                self._queue.put(_Operation(apply, future))
        return future

    def close(self) -> None:
        """Write what is queued, then stop."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            group, open_ = self._next_group(max(0.0, due - time.monotonic()))
            if open_ and time.monotonic() >= due:
                group.append(self._upkeep_operation())
                due = time.monotonic() + self._upkeep_s
            if group:
                self._commit(group)
            if not open_:
                return

    def _next_group(self, timeout_s: float) -> tuple[list[_Operation], bool]:
        group: list[_Operation] = []
        try:
            operation = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
            while True:
                if operation is None:
                    return group, False
                group.append(operation)
                if len(group) >= MAX_GROUP:
                    return group, True
                operation = self._queue.get_nowait()
        except queue.Empty:
            return group, True

    def _upkeep_operation(self) -> _Operation:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        future.add_done_callback(_log_failed_upkeep)
        return _Operation(self._upkeep, future)

    def _commit(self, group: list[_Operation]) -> None:
        try:
            results = self._transact(group)
        except Exception as error:  # the whole group is rolled back; every caller is told below
            told = translated(error, "write")
            if not isinstance(told, StoreUnavailable) and len(group) > 1:
                for operation in group:
                    self._commit([operation])
                return
            for operation in group:
                operation.future.set_exception(told)
            return
        for operation, (transaction, outcome) in zip(group, results, strict=True):
            self._resolve(operation.future, transaction, outcome)

    def _transact(self, group: list[_Operation]) -> list[tuple[Transaction, Any]]:
        results: list[tuple[Transaction, Any]] = []
        with self._engine.begin() as connection:
            for operation in group:
                transaction = Transaction(connection, self._clock())
                try:
                    with connection.begin_nested():
                        outcome = operation.apply(transaction)
                except StoreRefusal as refusal:
                    transaction, outcome = Transaction(connection, transaction.now_ns), Rejected(refusal)
                results.append((transaction, outcome))
        return results

    def _resolve(self, future: Future[Any], transaction: Transaction, outcome: Any) -> None:
        try:
            for hook in transaction.committed:
                hook()
        except Exception:  # a hook only refreshes memory; the commit stands and must be acknowledged
            logger.exception("a hook after commit failed")
        if isinstance(outcome, Rejected):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)


def _log_failed_upkeep(future: Future[Any]) -> None:
    error = future.exception()
    if isinstance(error, StoreError):
        logger.warning("lease upkeep failed, tried again in a moment: %s", error)
    elif error is not None:
        logger.error("lease upkeep failed", exc_info=error)
