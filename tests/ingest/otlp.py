"""OTLP requests made by hand, and a client that sends raw bytes."""

from __future__ import annotations

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lightning_jax.ingest.trace_service import SERVICE

METHOD = f"/{SERVICE}/Export"


def make_span(number: int, trace: int = 1, **attributes: str) -> Span:
    span = Span(
        trace_id=trace.to_bytes(16, "big"),
        span_id=number.to_bytes(8, "big"),
        name=f"span {number}",
        start_time_unix_nano=2**64 - 1,
        end_time_unix_nano=5,
    )
    for key, value in attributes.items():
        span.attributes.add(key=key).value.string_value = value
    return span


def make_request(*spans: Span, resource: dict[str, str] | None = None) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    for key, value in (resource or {}).items():
        resource_spans.resource.attributes.add(key=key).value.string_value = value
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "openinference.instrumentation.openai"
    scope_spans.spans.extend(spans)
    return request


class Exporter:
    """Sends raw bytes to the Export method."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(
            target, options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        )

    def send(
        self, data: bytes | ExportTraceServiceRequest, key: str = "", compression: grpc.Compression | None = None
    ) -> ExportTraceServiceResponse:
        call = self._channel.unary_unary(METHOD, response_deserializer=ExportTraceServiceResponse.FromString)
        payload = data if isinstance(data, bytes) else data.SerializeToString()
        metadata = [("authorization", f"Bearer {key}")] if key else []
        return call(payload, timeout=60, metadata=metadata, compression=compression)

    def close(self) -> None:
        self._channel.close()
