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

from lightning_jax.ingest.otlp_json import request_of_document
from lightning_jax.ingest.placement import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE, span_count
from lightning_jax.ingest.trace_service import SERVICE


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


def send(target: str, requests: Iterator[ExportTraceServiceRequest], attempt: str, key: str | None) -> tuple[int, int]:
    """Export requests to a server; returns (spans sent, rejected). attempt: "" or rollout/attempt, whose they are."""
    sent = rejected = 0
    metadata = [("authorization", f"Bearer {key}")] if key else []
    with grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/Export", ExportTraceServiceRequest.SerializeToString, ExportTraceServiceResponse.FromString
        )
        for request in requests:
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
