"""An answer on one connection: whole, or as server-sent events with comments that keep it alive meanwhile.

Invariant: an answer counts as delivered once its last byte was handed to a connection that was open until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lightning_jax.serve.answer import Answer, Delta
from lightning_jax.serve.errors import ApiError
from lightning_jax.serve.responses import KEEP_ALIVE, error_event

logger = logging.getLogger(__name__)
GENERATION_ID = "x-ljx-generation-id"


class Writer(Protocol):
    """How an endpoint's events look."""

    ends_with_deltas: bool  # clients may leave after the last delta, before what closes the stream

    def opening(self) -> bytes:
        """Before anything is there."""

    def delta(self, delta: Delta) -> bytes:
        """Something new."""

    def closing(self) -> bytes:
        """After everything."""


class PlainAnswer(Response):
    """A finished answer as one body. Detaches from it when it is sent, or can't be."""

    def __init__(self, answer: Answer, body: bytes) -> None:
        super().__init__(body, headers={GENERATION_ID: answer.call_id}, media_type="application/json")
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(disconnected(receive))
        delivered = False
        try:
            await asyncio.sleep(0)  # a client that left while the body was built is known by now
            left = gone.done()
            await super().__call__(scope, receive, send)
            delivered = not left
        except OSError:  # the client left while we wrote
            delivered = False
        finally:
            gone.cancel()
            self._answer.detach(delivered=delivered)


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
        except Exception:  # headers are out: the stream can only break off, and does so as one that failed
            logger.exception("the stream of answer %s failed", self._answer.call_id)
            failed = ApiError(500, "the server failed on this stream", code="internal_error")
            await send({"type": "http.response.body", "body": error_event(failed), "more_body": False})
        finally:
            gone.cancel()
            self._answer.detach(delivered=delivered)
            self._ended()

    async def _follow(self, send: Send, gone: asyncio.Future[None]) -> bool:
        """Send deltas as they come; True when everything that an agent acts on was sent."""
        answer, sent, ended = self._answer, 0, 0
        while not gone.done():
            done = answer.done
            body = b"".join(self._writer.delta(delta) for delta in answer.deltas[sent:])
            ended += sum(delta.finish_reason is not None for delta in answer.deltas[sent:])
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
        return self._writer.ends_with_deltas and ended == len(answer.choices)


async def disconnected(receive: Receive) -> None:
    """Return once the client has gone; whatever else it sends is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
