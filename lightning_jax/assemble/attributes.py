"""A span's bytes as plain values. Invariant: any bytes give attributes or None, never an exception."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1 import trace_pb2

from lightning_jax import types

Attributes = Mapping[str, Any]  # str, bool, int, float or list of str


@dataclass(frozen=True, slots=True)
class Decoded:
    """What of a span is looked at: attributes of scalars and lists of text, its status, its exception event."""

    attributes: Attributes
    failed: bool  # status ERROR
    message: str = ""  # status message
    exception: tuple[str, str] = ("", "")  # type and message of the last exception event
    events: Mapping[str, Attributes] = field(default_factory=dict)  # attributes of the last event of each name


def decode(span: types.Span) -> Decoded | None:
    """Read a span; None where its bytes are no span."""
    try:
        message = trace_pb2.Span.FromString(span.body)
    except (DecodeError, UnicodeDecodeError):
        return None
    events = {event.name: _plain(event.attributes) for event in message.events}
    raised = events.get("exception", {})
    return Decoded(
        attributes=_plain(message.attributes),
        failed=message.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        message=message.status.message,
        exception=(text_of(raised, "exception.type"), text_of(raised, "exception.message")),
        events=events,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in attributes:
        kind = item.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            found[item.key] = getattr(item.value, kind)
        elif kind == "array_value":
            found[item.key] = [value.string_value for value in item.value.array_value.values]
    return found


def text_of(attributes: Attributes, *keys: str) -> str:
    """The first of the keys that holds text; "" where none does."""
    for key in keys:
        value = attributes.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


def number_of(attributes: Attributes, *keys: str) -> int:
    """The first of the keys that holds a number (instrumentations also write it as text); 0 where none does."""
    for key in keys:
        value = attributes.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
            return int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
            return int(value)
    return 0


def json_of(text: str) -> Any:
    """The JSON object or list in a text; None where it is neither."""
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
