"""What goes over the wire: every request and answer of an app, kept as bytes, and what an answer's bytes say.

The tap asks for token ids in the agent's place (`return_token_ids`), so that the bytes can be held against what is
trained on; frameworks keep fields that they don't know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass
class Exchange:
    """One request and its answer."""

    path: str
    request: dict[str, Any]  # as the agent sent it
    body: bytearray = field(default_factory=bytearray)
    status: int = 0


@dataclass(frozen=True)
class WireCall:
    """What the bytes of an answer say."""

    response_id: str
    prompt_ids: list[int]
    token_ids: list[int]
    policy_version: int
    text: str
    calls: list[tuple[str, str, str]]  # id, name, arguments
    finish: str


class Tap:
    """An ASGI app in front of another; `exchanges` in the order that requests came."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.exchanges: list[Exchange] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        exchange = Exchange(scope["path"], json.loads(raw))
        self.exchanges.append(exchange)
        given = [json.dumps({**exchange.request, "return_token_ids": True}).encode()]

        async def read() -> Message:
            return {"type": "http.request", "body": given.pop(), "more_body": False} if given else await receive()

        async def write(message: Message) -> None:
            exchange.status = message.get("status", exchange.status)
            exchange.body += message.get("body", b"")
            await send(message)

        await self._app(scope, read, write)

    def of(self, attempt_id: str) -> list[WireCall]:
        """The answered calls of an attempt."""
        found = [e for e in self.exchanges if f"/attempt/{attempt_id}/" in e.path]
        assert {e.status for e in found} <= {200}
        return [read_answer(e) for e in found]


def read_answer(exchange: Exchange) -> WireCall:
    """An answer of either endpoint, plain or streamed."""
    raw = bytes(exchange.body).decode()
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    if exchange.path.endswith("/responses"):
        return _response(events[-1]["response"] if events else json.loads(raw))
    return _streamed(events) if events else _completion(json.loads(raw))


def _completion(body: dict[str, Any]) -> WireCall:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return WireCall(
        body["id"], body["prompt_token_ids"], choice["token_ids"], body["policy_version"], message["content"] or "",
        calls, choice["finish_reason"],
    )  # fmt: skip


def _streamed(events: list[dict[str, Any]]) -> WireCall:
    text, finish, token_ids = "", "", []
    calls: dict[int, list[str]] = {}
    for choice in (c for e in events for c in e["choices"]):
        text += choice["delta"].get("content") or ""
        token_ids += choice.get("token_ids") or []
        finish = choice["finish_reason"] or finish
        for call in choice["delta"].get("tool_calls") or []:
            parts = calls.setdefault(call["index"], ["", "", ""])
            function = call["function"]
            for n, part in enumerate((call.get("id"), function.get("name"), function.get("arguments"))):
                parts[n] += part or ""
    (prompt_ids,) = [e["prompt_token_ids"] for e in events if "prompt_token_ids" in e]
    (version,) = [e["policy_version"] for e in events if "policy_version" in e]
    found = [(c[0], c[1], c[2]) for c in calls.values()]
    return WireCall(events[0]["id"], prompt_ids, token_ids, version, text, found, finish)


def _response(body: dict[str, Any]) -> WireCall:
    assert body["status"] == "completed"
    texts = [p["text"] for item in body["output"] if item["type"] == "message" for p in item["content"]]
    calls = [(i["call_id"], i["name"], i["arguments"]) for i in body["output"] if i["type"] == "function_call"]
    return WireCall(
        body["id"], body["prompt_token_ids"], body["token_ids"], body["policy_version"], "".join(texts), calls,
        "tool_calls" if calls else "stop",
    )  # fmt: skip
