"""google.rpc.Status and RetryInfo, by which OTLP exporters learn what failed and when to come back.

The OTLP specification puts RetryInfo into the status details; the Python exporter looks for it in a trailer of its own.
Both are sent. The messages are three fields deep: they are written here rather than pulling in a package.
"""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

RETRY_DELAY_S = 0.5  # exporters give up after some seconds in all: a longer pause would make them drop
_TYPE = "type.googleapis.com/google.rpc.RetryInfo"


def retry_trailers(code: grpc.StatusCode, message: str, delay_s: float) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that asks for a retry after ``delay_s``; exporters give up after some seconds in all."""
    delay = Duration(seconds=int(delay_s), nanos=int(delay_s % 1 * 1e9))
    retry_info = _field(1, delay.SerializeToString())  # RetryInfo.retry_delay
    detail = AnyMessage(type_url=_TYPE, value=retry_info).SerializeToString()
    status = status_message(code, message) + _field(3, detail)  # Status.details
    return (("google.rpc.retryinfo-bin", retry_info), ("grpc-status-details-bin", status))


def status_message(code: grpc.StatusCode, message: str) -> bytes:
    """A serialised google.rpc.Status without details: also the body of an OTLP/HTTP error."""
    return bytes([1 << 3, code.value[0]]) + _field(2, message.encode("utf-8", "replace"))  # a code is below 128


def _field(number: int, payload: bytes) -> bytes:
    """One length-delimited protobuf field."""
    length, size = len(payload), bytearray()
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + payload
