"""OTLP/HTTP: POST /v1/traces, protobuf or JSON, for exporters that bring no gRPC.

Answers as the specification says: 200 after the commit, 400 for what never can be stored, 413 beyond the limit (also
after unpacking), 503 with Retry-After for what should come again; bodies in the encoding of the request, errors as
google.rpc.Status. Below an attempt's path the same route is that attempt's own, so an agent's OTLP endpoint may be its
base URL.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable

import grpc
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from lightning_jax.ingest.auth import NO_TOKEN, Authenticator, Caller
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.metrics import IngestMetrics
from lightning_jax.ingest.otlp_json import request_of_json
from lightning_jax.ingest.receiver import MAX_REQUEST_BYTES, SpanReceiver
from lightning_jax.ingest.retry_info import status_message
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.trace_service import SERVICE, response_to

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_DECODERS: dict[str, Callable[[bytes], ExportTraceServiceRequest]] = {
    PROTOBUF: ExportTraceServiceRequest.FromString,
    JSON: request_of_json,
}
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class _Refused(Exception):
    def __init__(self, http: int, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.http, self.code = http, code


class TraceRoutes:
    """The HTTP front of a receiver, as routes for any Starlette or FastAPI application."""

    def __init__(self, receiver: SpanReceiver, authenticator: Authenticator, store: Store) -> None:
        self._receiver = receiver
        self._authenticator = authenticator
        self._store = store
        self._metrics = IngestMetrics(receiver, store)

    def routes(self) -> list[Route]:
        """/v1/traces, the same below an attempt's path, and /metrics/ingest in Prometheus' text format."""
        paths = ("/v1/traces", "/rollout/{rollout}/attempt/{attempt}/v1/traces")
        exports = [Route(path, self.export, methods=["POST"]) for path in paths]
        return [*exports, Route("/metrics/ingest", self.metrics, methods=["GET"])]

    async def metrics(self, _request: Request) -> Response:
        """GET metrics/ingest."""
        text = await asyncio.to_thread(self._metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def export(self, request: Request) -> Response:
        """Store the spans of one request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            return await self._stored(request, kind)
        except _Refused as refused:
            return _error(kind, refused.http, refused.code, str(refused))
        except ValueError as error:
            return _error(kind, 400, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StoreUnavailable as error:
            return _error(kind, 503, grpc.StatusCode.UNAVAILABLE, str(error))

    async def _stored(self, request: Request, kind: str) -> Response:
        if kind not in _DECODERS:
            message = f"content-type is {kind!r}; send {PROTOBUF} or {JSON}"
            raise _Refused(415, grpc.StatusCode.INVALID_ARGUMENT, message)
        caller = await asyncio.to_thread(self._caller, request)
        data = await _body(request)
        placement = await self._receiver.receive(data, caller, _DECODERS[kind], None)
        response = response_to(placement)
        if kind == JSON:
            return Response(json.dumps(json_format.MessageToDict(response)), media_type=JSON)
        return Response(response.SerializeToString(), media_type=PROTOBUF)

    def _caller(self, request: Request) -> Caller:
        caller = self._authenticator.caller(request.headers.items())
        if caller is None:
            raise _Refused(401, grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)
        refusal = caller.refusal(f"/{SERVICE}/Export")
        if refusal:
            raise _Refused(403, grpc.StatusCode.PERMISSION_DENIED, refusal)
        if "rollout" not in request.path_params:
            return caller
        path = (request.path_params["rollout"], request.path_params["attempt"])
        grant = caller.grant or self._store.attempt_grant(*path)
        if grant is None:
            raise _Refused(404, grpc.StatusCode.NOT_FOUND, f"no attempt {path[1]!r} of rollout {path[0]!r}")
        if (grant.rollout.rollout_id, grant.attempt_id) != path:
            message = f"the token belongs to attempt {grant.attempt_id!r}, the path names {path[1]!r}"
            raise _Refused(403, grpc.StatusCode.PERMISSION_DENIED, message)
        return Caller(grant)


async def _body(request: Request) -> bytes:
    """The unpacked body; refuses one beyond the limit as soon as it is known to be."""
    declared = request.headers.get("content-length", "0")
    size = int(declared) if declared.isdigit() else 0
    if size > MAX_REQUEST_BYTES:
        raise _too_large(f"{size} bytes")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", *_WINDOWS):
        message = f"content-encoding is {encoding!r}; send gzip, deflate or none"
        raise _Refused(415, grpc.StatusCode.INVALID_ARGUMENT, message)
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_REQUEST_BYTES:
                raise _too_large(f"more than {size} bytes")
            parts.append(part)
    except ClientDisconnect as error:
        raise _Refused(499, grpc.StatusCode.CANCELLED, "the client left before its request was read") from error
    packed = b"".join(parts)
    return await asyncio.to_thread(_unpacked, packed, _WINDOWS[encoding]) if encoding in _WINDOWS else packed


def _unpacked(packed: bytes, window: int) -> bytes:
    """Inflate, but never beyond the limit: a bomb costs what it may unpack to, no more."""
    inflater = zlib.decompressobj(window)
    try:
        data = inflater.decompress(packed, MAX_REQUEST_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"the body is not what its content-encoding says: {error}") from error
    if len(data) > MAX_REQUEST_BYTES:
        raise _too_large(f"more than {MAX_REQUEST_BYTES} bytes unpacked")
    if not inflater.eof:
        raise ValueError("the compressed body ends too early")
    if inflater.unused_data:
        raise ValueError(f"{len(inflater.unused_data)} bytes follow the compressed body; send it as one stream")
    return data


def _too_large(what: str) -> _Refused:
    message = f"the request has {what}, the limit is {MAX_REQUEST_BYTES}; send less"
    return _Refused(413, grpc.StatusCode.RESOURCE_EXHAUSTED, message)


def _error(kind: str, http: int, code: grpc.StatusCode, message: str) -> Response:
    # A refused body is not read to its end: without closing, the client would go on sending it.
    headers = {503: {"retry-after": "1"}, 413: {"connection": "close"}}.get(http)
    if kind == JSON:
        return Response(json.dumps({"code": code.value[0], "message": message}), http, headers, JSON)
    return Response(status_message(code, message), http, headers, PROTOBUF)
