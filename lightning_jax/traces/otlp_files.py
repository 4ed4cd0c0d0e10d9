"""OTLP JSON files, and sending what is in them to a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from lightning_jax.ingest.client import open_channel
from lightning_jax.ingest.otlp_json import request_of_document
from lightning_jax.ingest.placement import span_count
from lightning_jax.ingest.references import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE
from lightning_jax.ingest.trace_service import SERVICE

MOST_BYTES = 32 * 1024 * 1024  # of one request: half of what receivers take, resource and scope come on top
_FRAMING = 16  # bytes of tag and length around a span, at most


def read_otlp(path: Path) -> Iterator[ExportTraceServiceRequest]:
    """The requests in an OTLP JSON file: one document, or one a line. ValueError names the line."""
    text = path.read_text(encoding="utf-8")
    try:
        documents = [(1, json.loads(text))]
    except ValueError:
        documents = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                documents += [(number, json.loads(line))] if line.strip() else []
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from error
    for number, document in documents:
        try:
            yield request_of_document(document)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error


def send(
    target: str,
    requests: Iterator[ExportTraceServiceRequest],
    attempt: str,
    key: str | None,
    *,
    most_bytes: int = MOST_BYTES,
) -> tuple[int, int]:
    """Export requests to a server (host:port, or https://host:port, trusted as LJX_TLS_CA and its like say).

    Returns (spans sent, rejected). attempt: "" or rollout/attempt, whose they are. Requests beyond ``most_bytes`` go in
    parts. ConnectionError where the server refuses one.
    """
    sent = rejected = 0
    metadata = [("authorization", f"Bearer {key}")] if key else []
    with open_channel(target) as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/Export", ExportTraceServiceRequest.SerializeToString, ExportTraceServiceResponse.FromString
        )
        for request in (part for whole in requests for part in _parts(whole, most_bytes)):
            for resource in request.resource_spans if attempt else ():
                for name, value in zip((ROLLOUT_ATTRIBUTE, ATTEMPT_ATTRIBUTE), attempt.split("/", 1), strict=True):
                    resource.resource.attributes.add(key=name).value.string_value = value
            try:
                response = method(request, metadata=metadata, timeout=60)
            except grpc.RpcError as error:
                raise ConnectionError(f"{target} answered {error.code().name}: {error.details()}") from error
            sent += span_count(request)
            rejected += response.partial_success.rejected_spans
    return sent, rejected


def _parts(request: ExportTraceServiceRequest, most_bytes: int) -> Iterator[ExportTraceServiceRequest]:
    """The request, or its spans in order in requests of at most ``most_bytes`` (a span larger than that alone)."""
    if request.ByteSize() <= most_bytes:
        yield request
        return
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            part, size = _part(resource, scope), 0
            for span in scope.spans:
                more = span.ByteSize() + _FRAMING
                if size and size + more > most_bytes:
                    yield part
                    part, size = _part(resource, scope), 0
                part.resource_spans[0].scope_spans[0].spans.append(span)
                size += more
            if size:
                yield part


def _part(resource: ResourceSpans, scope: ScopeSpans) -> ExportTraceServiceRequest:
    """A request with the resource and scope of these, and no spans."""
    part = ExportTraceServiceRequest()
    resource_part = part.resource_spans.add(schema_url=resource.schema_url)
    resource_part.resource.CopyFrom(resource.resource)
    resource_part.scope_spans.add(schema_url=scope.schema_url).scope.CopyFrom(scope.scope)
    return part
