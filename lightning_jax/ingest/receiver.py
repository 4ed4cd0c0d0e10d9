"""OTLP's receiving side without a transport: bounded admission, decoding, placing, and the answer after the commit.

Invariant: what `receive` returned for is durable, except the spans it counts as rejected. What waits for its commit is
bounded in requests, spans and bytes; whoever would exceed a bound is told to come back, and nothing of his is kept.
gRPC and HTTP share one receiver, each from a loop of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_jax.ingest.admission import Admission, Admissions, ReceiverLimits
from lightning_jax.ingest.auth import Caller
from lightning_jax.ingest.pace import Pace
from lightning_jax.ingest.placement import Placement, place
from lightning_jax.ingest.store import Store

MAX_REQUEST_BYTES = 64 * 1024 * 1024  # after decompression, as the OTLP specification recommends


class SpanReceiver:
    """Stores spans for callers of any transport. Safe for several event loops."""

    def __init__(self, store: Store, admissions: Admissions | None = None, pace: Pace | None = None) -> None:
        """admissions, pace: those of the server, shared with what else it stores."""
        self._store = store
        self._admissions = admissions or Admissions(ReceiverLimits())
        self._pace = pace or Pace()
        self._lock = threading.Lock()
        self._stored = self._rejected = 0

    def counters(self) -> dict[str, int]:
        """Totals since start, for metrics; and how much is under way now: pending_requests, ..._spans, ..._bytes."""
        with self._lock:
            stored, rejected = self._stored, self._rejected
        return {
            "spans_stored": stored, "spans_rejected": rejected, "exports_throttled": self._admissions.refused,
            **{f"pending_{what}": count for what, count in self._admissions.pending.items()},
        }  # fmt: skip

    def admit(self, size: int) -> AbstractContextManager[Admission]:
        """The place of one request of ``size`` bytes, to be held until it is answered. Entering it raises
        StoreUnavailable where there is none: a transport that can asks before it reads the body.
        """
        return self._admissions.admit(size)

    async def receive(
        self,
        data: bytes,
        caller: Caller,
        decode: Callable[[bytes], ExportTraceServiceRequest],
        admission: Admission,
        left_s: float | None = None,
    ) -> Placement:
        """Decode and store one admitted request; returns once its spans are durable.

        left_s: seconds until the caller's deadline, None for none. Raises ValueError (malformed: never repeat it),
        StoreUnavailable (repeat it later) or TooLate.
        """
        with self._pace.measured(left_s):
            placement = await asyncio.to_thread(self._place, data, caller, decode)
            admission.add("spans", len(placement.spans))
            await asyncio.wrap_future(self._store.record_spans(placement.spans, placement.aside))
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
