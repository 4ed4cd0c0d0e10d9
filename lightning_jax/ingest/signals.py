"""Tell threads and event loops that something new is in the store, without polling it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable


class Signal:
    """A counter that only grows. Who remembers the count it last saw cannot miss a change."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._listeners: list[Callable[[], None]] = []

    @property
    def count(self) -> int:
        """How often notify was called."""
        return self._count

    def notify(self) -> None:
        """Wake everybody; called from the writer's thread after a commit."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Block until the count differs from ``seen``; False where ``timeout_s`` passed first."""
        deadline = time.monotonic() + timeout_s
        with self._condition:
            while self._count == seen:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(left)
            return True

    async def changed(self, seen: int, timeout_s: float) -> bool:
        """The same for a coroutine; no thread is held while it waits."""
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def wake() -> None:
            # The loop may close between a commit and this call; then nobody is left to wake.
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        with self._condition:
            self._listeners.append(wake)
            ready = self._count != seen
        try:
            if not ready:
                await asyncio.wait_for(event.wait(), timeout_s)
            return True
        except TimeoutError:
            return False
        finally:
            with self._condition:
                self._listeners.remove(wake)
