"""How long a commit takes now, and who need not wait for one: callers whose deadline ends before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class TooLate(Exception):
    """The caller's deadline ends before a commit can be expected; nothing was stored."""


class Pace:
    """A moving average of the time from a whole request to its commit. Shared by all that write."""

    def __init__(self) -> None:
        self._commit_s = 0.0

    @contextmanager
    def measured(self, left_s: float | None) -> Iterator[None]:
        """Around the work on one request. left_s: seconds until its deadline, None for none. Raises TooLate."""
        expected_s = self._commit_s
        if left_s is not None and left_s < expected_s:
            self._commit_s *= 0.9  # nothing is measured while everybody is refused: let one in again before long
            raise TooLate(f"{left_s:.3f} s are left, a commit takes {expected_s:.3f} s now; use a longer deadline")
        started = time.monotonic()
        yield
        self._commit_s += 0.1 * (time.monotonic() - started - self._commit_s)
