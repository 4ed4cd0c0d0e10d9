"""OTLP/HTTP: POST /v1/traces, protobuf or JSON, for exporters that bring no gRPC.

Answers as the specification says: 200 after the commit, 400 for what never can be stored, 413 beyond the limit (also
after unpacking), 503 with Retry-After for what should come again (429 is as good by the specification, but Python's
exporter drops what was answered so); bodies in the encoding of the request, errors as google.rpc.Status. A request is
admitted before its body is read. Below an attempt's path the same route is that attempt's own, so an agent's OTLP
endpoint may be its base URL.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import grpc
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightning_jax.ingest.auth import NO_TOKEN, Authenticator, Caller
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.http_body import LastAnswer, Refused, announced, read
from lightning_jax.ingest.metrics import IngestMetrics
from lightning_jax.ingest.otlp_json import request_of_json
from lightning_jax.ingest.receiver import SpanReceiver
from lightning_jax.ingest.retry_info import status_message
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.trace_service import SERVICE, response_to
from lightning_jax.loopback import is_loopback

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_DECODERS: dict[str, Callable[[bytes], ExportTraceServiceRequest]] = {
    PROTOBUF: ExportTraceServiceRequest.FromString,
    JSON: request_of_json,
}


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

    async def metrics(self, request: Request) -> Response:
        """GET metrics/ingest; from other machines with a key that may do everything, as the policy server's metrics."""
        try:
            return await self._metrics_of(request)
        except StoreUnavailable as error:
            return _error(JSON, 503, grpc.StatusCode.UNAVAILABLE, str(error))

    async def _metrics_of(self, request: Request) -> Response:
        if request.client is not None and not is_loopback(request.client.host):
            caller = await self._authenticator.found(request.headers.items())
            if caller is None:
                return _error(
                    JSON, 401, grpc.StatusCode.UNAUTHENTICATED, "from another machine this takes an admin key"
                )
            if refusal := caller.refusal("/metrics/ingest"):
                return _error(JSON, 403, grpc.StatusCode.PERMISSION_DENIED, refusal)
        text = await asyncio.to_thread(self._metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def export(self, request: Request) -> Response:
        """Store the spans of one request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            return await self._stored(request, kind)
        except Refused as refused:
            return _error(kind, refused.http, refused.code, str(refused), unread=refused.unread)
        except ValueError as error:
            return _error(kind, 400, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StoreUnavailable as error:
            return _error(kind, 503, grpc.StatusCode.UNAVAILABLE, str(error))

    async def _stored(self, request: Request, kind: str) -> Response:
        if kind not in _DECODERS:
            message = f"content-type is {kind!r}; send {PROTOBUF} or {JSON}"
            raise Refused(415, grpc.StatusCode.INVALID_ARGUMENT, message)
        caller = await asyncio.to_thread(self._caller, request)  # a path may need a look into the store too
        with self._receiver.admit(announced(request)) as admission:
            data = await read(request, admission)
            placement = await self._receiver.receive(data, caller, _DECODERS[kind], admission)
        response = response_to(placement)
        if kind == JSON:
            return Response(json.dumps(json_format.MessageToDict(response)), media_type=JSON)
        return Response(response.SerializeToString(), media_type=PROTOBUF)

    def _caller(self, request: Request) -> Caller:
        caller = self._authenticator.caller(request.headers.items())
        if caller is None:
            raise Refused(401, grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)
        refusal = caller.refusal(f"/{SERVICE}/Export")
        if refusal:
            raise Refused(403, grpc.StatusCode.PERMISSION_DENIED, refusal)
        if "rollout" not in request.path_params:
            return caller
        path = (request.path_params["rollout"], request.path_params["attempt"])
        grant = caller.grant or self._store.attempt_grant(*path)
        if grant is None:
            raise Refused(404, grpc.StatusCode.NOT_FOUND, f"no attempt {path[1]!r} of rollout {path[0]!r}")
        if (grant.rollout.rollout_id, grant.attempt_id) != path:
            message = f"the token belongs to attempt {grant.attempt_id!r}, the path names {path[1]!r}"
            raise Refused(403, grpc.StatusCode.PERMISSION_DENIED, message)
        return Caller(grant)


def _error(kind: str, http: int, code: grpc.StatusCode, message: str, *, unread: bool = False) -> Response:
    headers = {"retry-after": "1"} if http == 503 else {}
    answer = Response
    if unread:
        headers["connection"], answer = "close", LastAnswer
    if kind == JSON:
        return answer(json.dumps({"code": code.value[0], "message": message}), http, headers, JSON)
    return answer(status_message(code, message), http, headers, PROTOBUF)
