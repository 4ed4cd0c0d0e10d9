"""What all RPCs that write data share: room within the server's bounds, and a deadline that leaves time to commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_jax.ingest.admission import Admissions
from lightning_jax.ingest.pace import Pace


class Intake:
    """The bounds and the pace of one server, for its own RPCs (OTLP's go through a SpanReceiver)."""

    def __init__(self, admissions: Admissions, pace: Pace) -> None:
        self._admissions, self._pace = admissions, pace

    @contextmanager
    def place(self, request: Any, context: Any) -> Iterator[None]:
        """Hold the place of one request (a protobuf message) until it is answered.

        Raises StoreUnavailable where there is no room, TooLate where the caller's deadline is too near.
        """
        with self._admissions.admit(request.ByteSize()), self._pace.measured(context.time_remaining()):
            yield
