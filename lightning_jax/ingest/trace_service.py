"""OTLP/gRPC: stock OpenTelemetry exporters, acknowledged after the commit.

Invariant: an OK answer means that every span is durable, except those that partial_success counts as rejected. A full
queue answers UNAVAILABLE with a short RetryInfo, garbage INVALID_ARGUMENT, so exporters neither drop what could be
stored later nor repeat what never can be.
"""

from __future__ import annotations

from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightning_jax.ingest.auth import NO_TOKEN, Authenticator
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.pace import TooLate
from lightning_jax.ingest.placement import Placement
from lightning_jax.ingest.receiver import MAX_REQUEST_BYTES, SpanReceiver
from lightning_jax.ingest.status import come_back

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


class TraceService:
    """The gRPC front of a receiver."""

    def __init__(self, receiver: SpanReceiver, authenticator: Authenticator) -> None:
        self._receiver = receiver
        self._authenticator = authenticator

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
        try:
            caller = await self._authenticator.found(context.invocation_metadata() or ())
            if caller is None:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)
                return ExportTraceServiceResponse()
            with self._receiver.admit(len(request)) as admission:
                placement = await self._receiver.receive(
                    request, caller, ExportTraceServiceRequest.FromString, admission, context.time_remaining()
                )
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TooLate as error:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        except StoreUnavailable as error:
            await come_back(context, str(error))
        return response_to(placement)


def response_to(placement: Placement) -> ExportTraceServiceResponse:
    """The answer to a stored request; full success leaves partial_success unset, as OTLP demands."""
    if not placement.rejected:
        return ExportTraceServiceResponse()
    partial = ExportTracePartialSuccess(rejected_spans=placement.rejected, error_message=placement.message)
    return ExportTraceServiceResponse(partial_success=partial)
