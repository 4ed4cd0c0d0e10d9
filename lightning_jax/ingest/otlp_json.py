"""OTLP's JSON: protobuf's JSON mapping, but with hexadecimal ids.

Read leniently as the specification asks: unknown fields are ignored, ids may come in either case. Ids in base64, as
protobuf's own mapping writes them, are taken too; the lengths tell them apart.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_ID_SIZES = {"traceId": 16, "spanId": 8, "parentSpanId": 8, "trace_id": 16, "span_id": 8, "parent_span_id": 8}


def request_of_json(data: bytes | str) -> ExportTraceServiceRequest:
    """One request. Raises ValueError where the text is no JSON of one."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    return request_of_document(document)


def request_of_document(document: Any) -> ExportTraceServiceRequest:
    """One request out of decoded JSON, whose ids are changed in place. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError(f"an OTLP request is a JSON object with resourceSpans, got {type(document).__name__}")
    for holder in _with_ids(document):
        for key, size in _ID_SIZES.items():
            if holder.get(key):
                holder[key] = base64.b64encode(_identity(holder[key], size)).decode("ascii")
    request = ExportTraceServiceRequest()
    try:
        json_format.ParseDict(document, request, ignore_unknown_fields=True)
    except (json_format.ParseError, RecursionError, TypeError, AttributeError) as error:
        raise ValueError(f"not the JSON of an ExportTraceServiceRequest: {error}") from error
    return request


def _with_ids(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The spans and links of a request; whatever has another shape is left to the parser to refuse."""
    for resource in _objects(document, "resourceSpans", "resource_spans"):
        for scope in _objects(resource, "scopeSpans", "scope_spans"):
            for span in _objects(scope, "spans"):
                yield span
                yield from _objects(span, "links")


def _objects(holder: dict[str, Any], *keys: str) -> Iterator[dict[str, Any]]:
    for key in keys:
        found = holder.get(key)
        if isinstance(found, list):
            yield from (item for item in found if isinstance(item, dict))


def _identity(text: Any, size: int) -> bytes:
    """An id as bytes. One of a wrong length is kept as it is, to be rejected with its span and not with its batch."""
    if not isinstance(text, str):
        raise ValueError(f"an id must be a hexadecimal string, got {text!r}")
    try:
        if len(text) == 4 * -(-size // 3):
            return base64.b64decode(text, validate=True)
        return bytes.fromhex(text)
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"the id {text[:80]!r} is neither hexadecimal nor base64: {error}") from error
