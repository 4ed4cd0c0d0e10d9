"""How much may be under way at a time, counted from before a body is read until its spans are durable.

Invariant: what is admitted stays within the bounds; whoever would exceed one gets StoreUnavailable, and nothing of his
is kept. Transports of several event loops share one Admissions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lightning_jax.ingest.errors import StoreUnavailable


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """How much may wait for its commit at a time, over all transports."""

    requests: int = 256
    spans: int = 50_000
    bytes: int = 256 * 1024 * 1024  # of bodies, as sent (announced ones count before they come) and as unpacked

    def __post_init__(self) -> None:
        for name in ("requests", "spans", "bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"limit of pending {name} is {getattr(self, name)}; 1 is the least")


class Admissions:
    """Everything that is under way, against the limits."""

    def __init__(self, limits: ReceiverLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._pending = {"requests": 0, "spans": 0, "bytes": 0}
        self._refused = 0

    @property
    def pending(self) -> dict[str, int]:
        """Requests, spans and bytes that are under way now."""
        with self._lock:
            return dict(self._pending)

    @property
    def refused(self) -> int:
        """How often somebody was told to come back, since start."""
        return self._refused

    @contextmanager
    def admit(self, size: int = 0) -> Iterator[Admission]:
        """Count one request of ``size`` bytes as under way; StoreUnavailable where a bound would be exceeded."""
        admission = Admission(self)
        try:
            admission.add("requests", 1)
            admission.add("bytes", size)
            yield admission
        finally:
            self._release(admission)

    def add(self, admission: Admission, what: str, more: int) -> None:
        """Let one request take ``more``.

        One that alone is larger than a bound is let in while nobody else is there: refusing it for ever would lose it.
        """
        bound = int(getattr(self._limits, what))
        with self._lock:
            others = self._pending[what] - admission.held[what]
            if more and others and self._pending[what] + more > bound:
                self._refused += 1
                raise StoreUnavailable(f"{others} {what} wait to be stored, the bound is {bound}; come back soon")
            admission.held[what] += more
            self._pending[what] += more

    def _release(self, admission: Admission) -> None:
        with self._lock:
            for what, held in admission.held.items():
                self._pending[what] -= held


class Admission:
    """What one request holds. Grows as its body comes in, is unpacked and turns out to be so many spans."""

    def __init__(self, admissions: Admissions) -> None:
        self._admissions = admissions
        self.held = {"requests": 0, "spans": 0, "bytes": 0}

    def add(self, what: str, more: int) -> None:
        """Take ``more`` "requests", "spans" or "bytes"; StoreUnavailable where their bound would be exceeded."""
        self._admissions.add(self, what, more)
