"""Server-sent events of an answer on one connection, with comments that keep it alive while nothing is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lightning_jax.serve.answer import Answer, Delta
from lightning_jax.serve.responses import KEEP_ALIVE, error_event

GENERATION_ID = "x-ljx-generation-id"


class Writer(Protocol):
    """How an endpoint's events look."""

    def opening(self) -> bytes:
        """Before anything is there."""

    def delta(self, delta: Delta) -> bytes:
        """Something new."""

    def closing(self) -> bytes:
        """After everything."""


class EventStream(Response):
    """Server-sent events of an answer, from its beginning, however late the connection joined."""

    def __init__(self, answer: Answer, writer: Writer, keepalive_s: float, ended: Callable[[], None]) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", GENERATION_ID: answer.call_id},
        )
        del self.headers["content-length"]
        self._answer = answer
        self._writer = writer
        self._keepalive_s = keepalive_s
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(disconnected(receive))
        delivered = False
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._writer.opening(), "more_body": True})
            delivered = await self._follow(send, gone)
        except OSError:  # the client left while we wrote
            delivered = False
        finally:
            gone.cancel()
            self._answer.detach(delivered=delivered)
            self._ended()

    async def _follow(self, send: Send, gone: asyncio.Future[None]) -> bool:
        """Send deltas as they come; True when the last byte was sent."""
        answer, sent = self._answer, 0
        while not gone.done():
            done = answer.done
            body = b"".join(self._writer.delta(delta) for delta in answer.deltas[sent:])
            sent = len(answer.deltas)
            if done:
                body += error_event(answer.error) if answer.error is not None else self._writer.closing()
                await send({"type": "http.response.body", "body": body, "more_body": False})
                return answer.error is None
            change = asyncio.ensure_future(answer.changed())
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            finished, _ = await asyncio.wait(
                {change, gone}, timeout=self._keepalive_s, return_when=asyncio.FIRST_COMPLETED
            )
            change.cancel()
            if not finished:
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
        return False


async def disconnected(receive: Receive) -> None:
    """Return once the client has gone; whatever else it sends is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
