"""OTLP's receiving side without a transport: bounded admission, decoding, placing, and the answer after the commit.

Invariant: what `receive` returned for is durable, except the spans it counts as rejected. What waits for its commit is
bounded in requests, spans and bytes; whoever would exceed a bound is told to come back, and nothing of his is kept.
gRPC and HTTP share one receiver, each from a loop of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_jax.ingest.auth import Caller
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.placement import Placement, place
from lightning_jax.ingest.store import Store

MAX_REQUEST_BYTES = 64 * 1024 * 1024  # after decompression, as the OTLP specification recommends


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """How much may wait for its commit at a time, over all transports."""

    requests: int = 256
    spans: int = 50_000
    bytes: int = 256 * 1024 * 1024  # of unpacked requests

    def __post_init__(self) -> None:
        for name in ("requests", "spans", "bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"limit of pending {name} is {getattr(self, name)}; 1 is the least")


class TooLate(Exception):
    """The caller's deadline ends before a commit can be expected; nothing was stored."""


class SpanReceiver:
    """Stores spans for callers of any transport. Safe for several event loops."""

    def __init__(self, store: Store, limits: ReceiverLimits | None = None) -> None:
        self._store = store
        self._limits = limits or ReceiverLimits()
        self._lock = threading.Lock()
        self._requests = self._spans = self._bytes = 0
        self._commit_s = 0.0  # moving average of the time from admission to commit
        self._stored = self._rejected = self._throttled = 0

    def counters(self) -> dict[str, int]:
        """Totals since start, for metrics; and how many spans wait for their commit now."""
        with self._lock:
            return {
                "spans_stored": self._stored, "spans_rejected": self._rejected,
                "exports_throttled": self._throttled, "pending": self._spans,
            }  # fmt: skip

    async def receive(
        self, data: bytes, caller: Caller, decode: Callable[[bytes], ExportTraceServiceRequest], left_s: float | None
    ) -> Placement:
        """Decode and store one request; returns once its spans are durable.

        left_s: seconds until the caller's deadline, None for none. Raises ValueError (malformed: never repeat it),
        StoreUnavailable (repeat it later) or TooLate.
        """
        expected_s = self._commit_s
        if left_s is not None and left_s < expected_s:
            self._commit_s *= 0.9  # nothing is measured while everybody is refused: let one in again before long
            raise TooLate(f"{left_s:.3f} s are left, a commit takes {expected_s:.3f} s now; use a longer deadline")
        with self._admitted(requests=1, size=len(data)):
            started = time.monotonic()
            placement = await asyncio.to_thread(self._place, data, caller, decode)
            with self._admitted(spans=len(placement.spans)):
                await asyncio.wrap_future(
                    self._store.record_spans(placement.spans, placement.aside, placement.adoptions)
                )
            self._commit_s += 0.1 * (time.monotonic() - started - self._commit_s)
            with self._lock:
                self._stored += len(placement.spans)
                self._rejected += placement.rejected
        return placement

    def _place(self, data: bytes, caller: Caller, decode: Callable[[bytes], ExportTraceServiceRequest]) -> Placement:
        try:
            request = decode(data)
        except (DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"not an ExportTraceServiceRequest: {error}") from error
        return place(request, caller, self._store)

    @contextmanager
    def _admitted(self, requests: int = 0, spans: int = 0, size: int = 0) -> Iterator[None]:
        """Count a piece of work as pending; StoreUnavailable where a bound would be exceeded.

        One that is larger than a bound is let in while nothing else is pending: refusing it for ever would lose it.
        """
        limits = self._limits
        with self._lock:
            for pending, more, bound, what in (
                (self._requests, requests, limits.requests, "exports"),
                (self._spans, spans, limits.spans, "spans"),
                (self._bytes, size, limits.bytes, "bytes"),
            ):
                if more and pending and pending + more > bound:
                    self._throttled += 1
                    raise StoreUnavailable(f"{pending} {what} wait to be stored, the bound is {bound}; come back soon")
            self._requests, self._spans, self._bytes = (
                self._requests + requests, self._spans + spans, self._bytes + size,
            )  # fmt: skip
        try:
            yield
        finally:
            with self._lock:
                self._requests, self._spans, self._bytes = (
                    self._requests - requests, self._spans - spans, self._bytes - size,
                )  # fmt: skip
