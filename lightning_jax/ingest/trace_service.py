"""OTLP's TraceService: stock OpenTelemetry exporters, acknowledged after the commit.

Invariant: an OK answer means that every span is durable, except those that partial_success counts as rejected. A full
queue answers UNAVAILABLE with a short RetryInfo, garbage INVALID_ARGUMENT, so exporters neither drop what could be
stored later nor repeat what never can be.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightning_jax.ingest.auth import Authenticator, Caller
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.placement import Placement, place, span_count
from lightning_jax.ingest.retry_info import retry_trailers
from lightning_jax.ingest.store import Store

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
MAX_REQUEST_BYTES = 64 * 1024 * 1024
RETRY_DELAY_S = 0.5


class TraceService:
    """Takes spans; at most ``max_pending`` of them wait for their commit at a time."""

    def __init__(self, store: Store, authenticator: Authenticator, *, max_pending: int = 50_000) -> None:
        self._store = store
        self._authenticator = authenticator
        self._max_pending = max_pending
        self._pending = 0

    def handler(self) -> Any:
        """The generic handler to add to a server. Requests arrive as bytes, so that garbage is answered as such."""
        export = grpc.unary_unary_rpc_method_handler(
            self.Export, response_serializer=ExportTraceServiceResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Export": export})

    async def Export(self, request: bytes, context: Any) -> ExportTraceServiceResponse:
        """Store the spans of one serialised ExportTraceServiceRequest."""
        if len(request) > MAX_REQUEST_BYTES:
            message = f"the request has {len(request)} bytes unpacked, the limit is {MAX_REQUEST_BYTES}; send less"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        caller = self._authenticator.caller(context.invocation_metadata() or ())
        if caller is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no valid bearer token")
            return ExportTraceServiceResponse()
        try:
            decoded = await asyncio.to_thread(ExportTraceServiceRequest.FromString, request)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not an ExportTraceServiceRequest: {error}")
            return ExportTraceServiceResponse()
        count = span_count(decoded)
        # A request larger than the bound is let in when it is alone: refusing it for ever would lose it.
        if self._pending and self._pending + count > self._max_pending:
            await _come_back(context, f"{self._pending} spans wait to be stored, the bound is {self._max_pending}")
        self._pending += count
        try:
            placement = await self._store_all(decoded, caller)
        except StoreUnavailable as error:
            await _come_back(context, str(error))
            return ExportTraceServiceResponse()
        finally:
            self._pending -= count
        if placement.rejected:
            partial = ExportTracePartialSuccess(rejected_spans=placement.rejected, error_message=placement.message)
            return ExportTraceServiceResponse(partial_success=partial)
        return ExportTraceServiceResponse()

    async def _store_all(self, request: ExportTraceServiceRequest, caller: Caller) -> Placement:
        placement = await asyncio.to_thread(place, request, caller, self._store)
        stored = self._store.record_spans(placement.spans, placement.aside)
        adopted = [self._store.adopt_trace(trace_id, *identity) for trace_id, identity in placement.adoptions.items()]
        for future in (stored, *adopted):
            await asyncio.wrap_future(future)
        return placement


async def _come_back(context: Any, message: str) -> None:
    code = grpc.StatusCode.UNAVAILABLE
    await context.abort(code, message, retry_trailers(code, message, RETRY_DELAY_S))
