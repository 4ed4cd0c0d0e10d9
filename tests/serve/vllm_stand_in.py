"""A server that speaks vLLM's dialect, from its documentation, over a tiny engine of ours: real sampling, real sockets.

It takes weights as vLLM does, from a directory in Hugging Face's layout, and is as strict about its calls: unknown
fields of a body are refused here (vLLM ignores them), the development calls are there only in development mode, and the
key guards /v1 alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lightning_jax.model.hf import load_hf
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.serve.engine import Engine, GenerationRequest
from lightning_jax.serve.grammar import Constrainer
from lightning_jax.serve.http import HttpServer

NAME = "base-model"
NEUTRAL = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
FIELDS = {
    *NEUTRAL, "model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop_token_ids", "skip_special_tokens",
    "logprobs", "return_token_ids", "return_tokens_as_token_ids", "stream", "structured_outputs",
}  # fmt: skip


@dataclass
class StandIn:
    """What the server is, and what it was asked for."""

    engine: Engine
    tokenizer: Tokenizer
    key: str = ""
    development: bool = True
    processed_logprobs: bool = True
    token_ids: bool = True
    url: str = ""
    calls: list[str] = field(default_factory=list)  # development calls, with their queries, in order
    bodies: list[dict[str, Any]] = field(default_factory=list)
    versions: int = 0
    asleep: set[str] = field(default_factory=set)
    updating: bool = False
    started: int = 0
    disconnected: int = 0
    fail: dict[str, str] = field(default_factory=dict)  # path → why it answers 500
    token_pause_s: float = 0.0

    def app(self) -> Starlette:
        post = {
            "/collective_rpc": self._rpc, "/sleep": self._sleep, "/wake_up": self._wake,
            "/reset_prefix_cache": self._reset, "/init_weight_transfer_engine": self._init,
            "/start_weight_update": self._start, "/update_weights": self._update,
            "/finish_weight_update": self._finish,
        }  # fmt: skip
        routes = [
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/completions", self._completions, methods=["POST"]),
        ]
        if self.development:
            routes += [Route(path, self._developed(call), methods=["POST"]) for path, call in post.items()]
        return Starlette(routes=routes)

    def _authorised(self, request: Request) -> bool:
        return not self.key or request.headers.get("authorization") == f"Bearer {self.key}"

    async def _models(self, request: Request) -> Response:
        if not self._authorised(request):
            return JSONResponse({"error": "Unauthorized"}, 401)
        length = self.engine.config.max_length
        card = {"id": NAME, "object": "model", "owned_by": "vllm", "root": "/models/x", "max_model_len": length}
        return JSONResponse({"object": "list", "data": [card]})

    async def _completions(self, request: Request) -> Response:
        if not self._authorised(request):
            return JSONResponse({"error": "Unauthorized"}, 401)
        body = await request.json()
        self.bodies.append(body)
        if set(body) - FIELDS or body["model"] != NAME or {k: body.get(k) for k in NEUTRAL} != NEUTRAL:
            return _refusal(f"fields {sorted(set(body) - FIELDS)}, model {body['model']}")
        if self.asleep:
            return _refusal("the engine sleeps", 500)
        grammar = body.get("structured_outputs", {}).get("grammar")
        wanted = GenerationRequest(
            np.asarray(body["prompt"], np.int32),
            body["max_tokens"],
            body["temperature"],
            body["top_p"],
            body["seed"],
            want_stream=True,
            top_logprobs=body["logprobs"],
            grammar=None if grammar is None else self._constrainer().compile(grammar, "structured_outputs"),
        )
        return _Stream(self._events(wanted))

    def _constrainer(self) -> Constrainer:
        return Constrainer(self.tokenizer, self.engine.model.vocab_size)

    async def _events(self, wanted: GenerationRequest) -> AsyncIterator[str]:
        generation = self.engine.submit(wanted)
        self.started += 1
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": NAME}
        chunks = generation.chunks()
        first, ended = True, False
        try:
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                for n, (token, logp) in enumerate(zip(chunk.ids, chunk.logps, strict=True)):
                    told = {f"token_id:{i}": p for i, p in (chunk.tops[n] if chunk.tops else [])}
                    if not self.processed_logprobs:
                        told = {name: p * wanted.temperature for name, p in told.items()}
                    told = {f"token_id:{token}": logp, **told, "token_id:1": told.get("token_id:1", -9999.0)}
                    choice = {"index": 0, "text": "x", "finish_reason": None, "stop_reason": None}
                    choice["logprobs"] = {
                        "tokens": [f"token_id:{token}"], "token_logprobs": [logp], "top_logprobs": [told],
                        "text_offset": [0],
                    }  # fmt: skip
                    if self.token_ids:
                        choice |= {
                            "token_ids": [token],
                            "prompt_token_ids": wanted.prompt_ids.tolist() if first else None,
                        }
                    first = False
                    yield f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"
                    await asyncio.sleep(self.token_pause_s)
            result = generation.result(60)
            last = {"index": 0, "text": "", "logprobs": None, "token_ids": [], "finish_reason": result.finish_reason}
            yield f"data: {json.dumps({**head, 'choices': [last]})}\n\n"
            yield f"data: {json.dumps({**head, 'choices': [], 'usage': {'prompt_tokens': 1}})}\n\n"
            yield "data: [DONE]\n\n"
            ended = True
        finally:
            if not ended:
                self.disconnected += 1
                self.engine.cancel(generation)

    def _developed(self, call: Any) -> Any:
        async def run(request: Request) -> Response:
            query = f"?{request.url.query}" if request.url.query else ""
            self.calls.append(f"{request.url.path}{query}")
            if why := self.fail.get(request.url.path):
                return _refusal(why, 500)
            raw = await request.body()
            return await call(request, json.loads(raw) if raw else None)

        return run

    async def _rpc(self, request: Request, body: Any) -> Response:
        if body["method"] != "reload_weights" or set(body["kwargs"]) != {"weights_path"}:
            return _refusal("unknown method", 500)
        if self.asleep - {"kv_cache"}:
            return _refusal("no memory for weights", 500)
        await self._load(body["kwargs"]["weights_path"])
        return JSONResponse({"results": [None]})

    async def _load(self, directory: str) -> None:
        _, params = load_hf(directory)
        self.versions += 1
        await asyncio.to_thread(self.engine.publish, params, self.versions)

    async def _sleep(self, request: Request, body: Any) -> Response:
        self.asleep = {"weights", "kv_cache"}
        return JSONResponse({"status": "sleeping"})

    async def _wake(self, request: Request, body: Any) -> Response:
        self.asleep -= set(request.query_params.getlist("tags") or ["weights", "kv_cache"])
        return JSONResponse({"status": "awake"})

    async def _reset(self, request: Request, body: Any) -> Response:
        return JSONResponse({"success": True})

    async def _init(self, request: Request, body: Any) -> Response:
        return JSONResponse({"message": "ok"}) if body["init_info"] == {} else _refusal("init_info")

    async def _start(self, request: Request, body: Any) -> Response:
        self.updating = True
        return JSONResponse({"message": "ok"})

    async def _update(self, request: Request, body: Any) -> Response:
        if not self.updating:
            return _refusal("not started", 500)
        await self._load(body["update_info"]["path"])
        return JSONResponse({"message": "ok"})

    async def _finish(self, request: Request, body: Any) -> Response:
        self.updating = False
        return JSONResponse({"message": body["weight_version"]})


class _Stream(Response):
    """Ends its source as soon as the client is gone, as vLLM does."""

    def __init__(self, source: AsyncIterator[str]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        gone = asyncio.ensure_future(disconnected())
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._source:
            if gone.done():
                await self._source.aclose()
                return
            await send({"type": "http.response.body", "body": piece.encode(), "more_body": True})
        gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _refusal(why: str, status: int = 400) -> Response:
    return JSONResponse({"error": {"message": why, "type": "BadRequestError", "param": None, "code": status}}, status)


@contextmanager
def standing_in(engine: Engine, tokenizer: Tokenizer, **settings: Any) -> Iterator[StandIn]:
    """The server, on a free port."""
    stand_in = StandIn(engine, tokenizer, **settings)
    http = HttpServer(stand_in.app())
    stand_in.url = f"http://127.0.0.1:{http.start()}"
    try:
        yield stand_in
    finally:
        http.stop()
