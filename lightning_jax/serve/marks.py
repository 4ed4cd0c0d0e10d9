"""Tells the store which recorded calls were delivered, one batch at a time: while one commits, the next gathers.

A call is durable before its answer leaves, so that a crash in between leaves a call that nobody got. What is told here
tells the two apart: after a restart a retry gets the stored answer, and what no retry asks for is not trained on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from lightning_jax.types import CallMark

logger = logging.getLogger(__name__)


class DeliveryMarks:
    """Any thread may use it. `store` takes a batch and says by its future when it is durable."""

    def __init__(self, store: Callable[[Sequence[CallMark]], Future[None]]) -> None:
        self._store = store
        self._lock = threading.Condition(threading.RLock())
        self._waiting: list[CallMark] = []
        self._under_way = False

    def delivered(self, call_ids: Iterable[str]) -> None:
        """Their answer's last byte has left."""
        now = time.time_ns()
        self.add(CallMark(call_id, delivered_ns=now) for call_id in call_ids)

    def undelivered(self, call_ids: Iterable[str]) -> None:
        """Nobody waits for their answer any more; a later delivery overrules this."""
        self.add(CallMark(call_id, delivered_ns=-1) for call_id in call_ids)

    def add(self, marks: Iterable[CallMark]) -> None:
        """Write these, at once or with the next batch."""
        with self._lock:
            self._waiting += marks
        self._next()

    def drain(self, timeout_s: float = 5.0) -> bool:
        """Wait until all is written; False where that takes longer."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._under_way and not self._waiting, timeout_s)

    def _next(self) -> None:
        with self._lock:
            if self._under_way or not self._waiting:
                return
            batch, self._waiting, self._under_way = self._waiting, [], True
        try:
            self._store(batch).add_done_callback(self._written)
        except Exception:
            logger.exception("delivery of %d calls could not be noted", len(batch))
            self._ended()

    def _written(self, future: Future[None]) -> None:
        if (error := future.exception()) is not None:
            logger.warning("delivery of calls could not be noted: %s", error)
        self._ended()
        self._next()

    def _ended(self) -> None:
        with self._lock:
            self._under_way = False
            self._lock.notify_all()
