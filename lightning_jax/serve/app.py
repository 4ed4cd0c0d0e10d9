"""The policy server's HTTP front: OpenAI's chat completions and what goes with them.

Every route exists twice, at /v1/... and under /rollout/{rollout}/attempt/{attempt}/v1/..., the base URL that an attempt
is handed. Bodies are read by hand: a request costs a fraction of what validation models would take.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lightning_jax.serve.answer import Answer
from lightning_jax.serve.chat import ChatService, ChatTokenizer
from lightning_jax.serve.chat_request import ChatRequest, parse_chat
from lightning_jax.serve.completions import CompletionChunks, completion_body, parse_completion
from lightning_jax.serve.config import ServeConfig
from lightning_jax.serve.errors import ApiError, busy, unforeseen
from lightning_jax.serve.event_stream import GENERATION_ID, EventStream, PlainAnswer, Writer, disconnected
from lightning_jax.serve.identity import CallSink, Grant, Identity, check_operator, identify
from lightning_jax.serve.metrics import ServerMetrics
from lightning_jax.serve.policy_engine import PolicyEngine
from lightning_jax.serve.recall import answers_of
from lightning_jax.serve.request_log import RequestLog
from lightning_jax.serve.responses import ChunkWriter, Decode, completion, encode
from lightning_jax.serve.responses_answer import ResponseEvents, response_body
from lightning_jax.serve.responses_request import parse_responses
from lightning_jax.serve.retries import Key, RetryTable, request_key, retry_key
from lightning_jax.types import Call

__all__ = ["ServeConfig", "create_app"]
logger = logging.getLogger(__name__)
ATTEMPT = "/rollout/{rollout}/attempt/{attempt}"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """An endpoint's requests and answers."""

    parse: Callable[[bytes, int], ChatRequest]
    body: Callable[[Answer, ChatRequest], bytes]
    writer: Callable[[Answer, ChatRequest], Writer]


def create_app(
    engine: PolicyEngine,
    tokenizer: ChatTokenizer,
    sink: CallSink,
    config: ServeConfig | None = None,
    *,
    grpc_port: Callable[[], int] = lambda: 0,
    log: RequestLog | None = None,
) -> FastAPI:
    """The ASGI app over a started engine. `sink` stores calls and knows attempts (see `CallSink`).

    Once no request is served any more, `app.state.drain()` waits until the sink has been told what was delivered.

    `grpc_port` tells where ingestion listens on the same host, for clients that know only this address; 0: nowhere.
    `log` gets a line for each answer.
    """
    settings = config or ServeConfig()
    front = _Front(engine, tokenizer, sink, settings, grpc_port, log)
    app = FastAPI(title="lightning_jax policy server", docs_url=None, redoc_url=None, openapi_url=None)
    for prefix in ("", ATTEMPT):
        app.add_route(f"{prefix}/v1/chat/completions", front.guarded(front.chat), methods=["POST"])
        app.add_route(f"{prefix}/v1/responses", front.guarded(front.responses), methods=["POST"])
        app.add_route(f"{prefix}/v1/completions", front.guarded(front.completions), methods=["POST"])
        app.add_route(f"{prefix}/v1/models", front.guarded(front.models), methods=["GET"])
    app.add_route("/healthcheck", front.guarded(front.health), methods=["GET", "POST"])
    app.add_route("/metrics", front.guarded(front.metrics), methods=["GET"])
    app.state.drain = front.drain
    return app


class _Front:
    """The endpoints and what they share. One event loop only."""

    def __init__(
        self,
        engine: PolicyEngine,
        tokenizer: ChatTokenizer,
        sink: CallSink,
        config: ServeConfig,
        grpc_port: Callable[[], int],
        log: RequestLog | None,
    ) -> None:
        self._engine = engine
        self._grpc_port = grpc_port
        self._log = log
        self._in_progress = 0
        self._decode: Decode = tokenizer.decode
        self._sink = sink
        self._config = config
        self._service = ChatService(engine, tokenizer, sink, config)
        self._retries: RetryTable[Answer] = RetryTable(config.replay_ttl_s, config.replay_capacity)
        self._metrics = ServerMetrics(engine, self._service)
        decode, named = self._decode, self._model
        self._chat = Dialect(
            parse_chat,
            lambda a, c: completion(a, named(c), decode, logprobs=c.logprobs, token_ids=c.token_ids),
            lambda a, c: ChunkWriter(
                a, named(c), decode, logprobs=c.logprobs, include_usage=c.include_usage, token_ids=c.token_ids
            ),
        )
        self._responses = Dialect(
            parse_responses,
            lambda a, c: response_body(a, c, named(c), decode),
            lambda a, c: ResponseEvents(a, c, named(c), decode),
        )
        self._completions = Dialect(
            parse_completion,
            lambda a, c: completion_body(a, c, named(c), decode),
            lambda a, c: CompletionChunks(a, c, named(c), decode),
        )

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint with refusals turned into error JSON and every answer counted and logged."""

        async def call(request: Request) -> Response:
            began, code = time.perf_counter(), None
            try:
                response = await endpoint(request)
            except ApiError as error:
                code, response = error.code or error.message, _refusal(error)
            except Exception as error:  # the client gets JSON that it understands; the cause goes to the log
                told = unforeseen(error)
                code, response = repr(error), _refusal(told)
                if told.status == 503:
                    logger.warning("%s: %s", endpoint.__name__, error)
                else:
                    logger.exception("%s failed", endpoint.__name__)
            self._metrics.answered(endpoint.__name__, response.status_code)
            if self._log is not None:
                self._log_answer(self._log, endpoint.__name__, request, response, began, code)
            return response

        return call

    def drain(self) -> None:
        """Wait until the sink knows what was delivered."""
        self._service.marks.drain()

    @staticmethod
    def _log_answer(
        log: RequestLog, endpoint: str, request: Request, response: Response, began: float, error: str | None
    ) -> None:
        """A stream is logged when it opens; its tokens are those of its call."""
        log.write(
            endpoint,
            status=response.status_code,
            ms=round(1e3 * (time.perf_counter() - began), 3),
            caller=getattr(request.state, "caller", None),
            client=request.client.host if request.client is not None else None,
            call_id=response.headers.get(GENERATION_ID),
            error=error,
        )

    async def chat(self, request: Request) -> Response:
        """POST chat/completions."""
        return await self._serve(request, self._chat)

    async def responses(self, request: Request) -> Response:
        """POST responses."""
        return await self._serve(request, self._responses)

    async def completions(self, request: Request) -> Response:
        """POST completions."""
        return await self._serve(request, self._completions)

    async def _serve(self, request: Request, dialect: Dialect) -> Response:
        if self._in_progress >= self._config.max_concurrent:
            raise busy(f"{self._in_progress} requests are in progress and max_concurrent is no more")
        self._in_progress += 1
        response: Response | None = None
        try:
            response = await self._answered(request, dialect)
        finally:
            if not isinstance(response, EventStream):  # which ends later, and says so
                self._in_progress -= 1
        return response

    def _stream_ended(self) -> None:
        self._in_progress -= 1

    async def _answered(self, request: Request, dialect: Dialect) -> Response:
        identity = await self._identify(request)
        raw = await self._body(request)
        chat = dialect.parse(raw, self._config.max_choices)
        key, marked = retry_key(identity.scope, request.url.path, raw, request.headers)
        lost = await self._recall(key, chat, identity.grant) if marked and identity.grant is not None else []
        await self._service.prepare(identity.grant)
        answer = self._retries.find(key) if marked else None
        if answer is None:
            answer = self._service.begin(chat, identity.grant, request_key(key), lost)
            self._retries.add(key, answer)
        else:
            self._metrics.joined()
        answer.attach()
        if chat.stream:
            return EventStream(answer, dialect.writer(answer, chat), self._config.keepalive_s, self._stream_ended)
        return await self._plain(request, chat, answer, dialect)

    async def _recall(self, key: Key, chat: ChatRequest, grant: Grant) -> list[Call]:
        """Take what an earlier process recorded of a request into the table, once.

        Returns what was recorded but can't be given again.
        """
        if self._retries.is_recalled(key):
            return []
        calls = await asyncio.to_thread(self._sink.calls_of_request, grant.attempt_id, request_key(key))
        known = {choice.call_id for answer in self._retries.answers(key) for choice in answer.choices}
        oldest_ns = time.time_ns() - int(self._config.replay_ttl_s * 1e9)
        whole, broken = answers_of([call for call in calls if call.call_id not in known], chat, oldest_ns)
        if not self._retries.is_recalled(key):  # by another retry, meanwhile
            self._retries.recall(key, [self._service.recall(chat, grant, group) for group in whole])
        return broken

    async def models(self, request: Request) -> Response:
        """GET models."""
        await self._identify(request)
        model = {"id": self._config.model_name, "object": "model", "created": 0, "owned_by": "lightning_jax"}
        return Response(encode({"object": "list", "data": [model]}), media_type="application/json")

    async def health(self, request: Request) -> Response:
        """GET or POST healthcheck."""
        version = self._engine.policy_version
        status = "ok" if self._engine.running else "down"
        grpc = {"grpc_port": self._grpc_port() or None, "grpc_tls": bool(self._config.ssl_certfile)}
        body = encode({"status": status, "policy_version": version, **grpc})
        return Response(body, 200 if status == "ok" else 503, media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """GET metrics, in Prometheus' text format; from other machines with an admin key."""
        host = request.client.host if request.client is not None else ""
        check_operator(self._config, request.headers.get("authorization", ""), host)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _plain(self, request: Request, chat: ChatRequest, answer: Answer, dialect: Dialect) -> Response:
        gone = asyncio.ensure_future(disconnected(request.receive))
        try:
            while not answer.done and not gone.done():
                change = asyncio.ensure_future(answer.changed())
                await asyncio.wait({change, gone}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
            if answer.error is not None:
                raise answer.error
            if not answer.done or gone.done():
                answer.detach(delivered=False)
                return Response(status_code=499)  # nobody is there to read it
            return PlainAnswer(answer, dialect.body(answer, chat))  # which detaches once it is sent
        except BaseException:
            answer.detach(delivered=False)
            raise
        finally:
            gone.cancel()

    async def _identify(self, request: Request) -> Identity:
        params = request.path_params
        path = (params["rollout"], params["attempt"]) if "rollout" in params else None
        host = request.client.host if request.client is not None else ""
        identity = await identify(self._sink, self._config, request.headers.get("authorization", ""), path, host)
        request.state.caller = identity.name
        return identity

    async def _body(self, request: Request) -> bytes:
        limit = self._config.max_body_bytes
        declared = request.headers.get("content-length", "0")
        parts, size = [], int(declared) if declared.isdigit() else 0
        if size <= limit:
            size = 0
            try:
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        break
                    parts.append(part)
            except ClientDisconnect as error:
                raise ApiError(499, "the client left before its request was read") from error
        if size > limit:
            raise ApiError(413, f"the body has more than {limit} bytes", code="request_too_large")
        return b"".join(parts)

    def _model(self, chat: ChatRequest) -> str:
        return chat.model or self._config.model_name


def _refusal(error: ApiError) -> Response:
    return Response(encode(error.body()), error.status, error.headers, "application/json")
