"""TransitionService: sealed attempts as a resumable stream, at least once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from lightning_jax._proto.lightning.v1 import transition_pb2 as pb
from lightning_jax.ingest import convert
from lightning_jax.ingest.status import answered
from lightning_jax.ingest.store import Store

# One attempt may be megabytes: read few at a time, the client's pace bounds what is in memory.
READ_AHEAD = 8
# A look in between: another server on the same PostgreSQL may have sealed something, or the client vanished.
IDLE_S = 2.0


class TransitionService:
    """Streams what the store has sealed, until the client leaves or ``closing`` says that the server stops."""

    def __init__(self, store: Store, closing: Callable[[], bool]) -> None:
        self._store = store
        self._closing = closing

    async def StreamTransitions(
        self, request: pb.StreamTransitionsRequest, context: Any
    ) -> AsyncIterator[pb.StreamTransitionsResponse]:
        """Send what is sealed, then wait for more until the client leaves."""
        async with answered(context):
            if request.HasField("cursor"):
                cursor = request.cursor
            else:
                cursor = await asyncio.to_thread(self._store.acked, request.consumer)
            while True:
                seen = self._store.sealed_signal.count
                batch = await asyncio.to_thread(self._sealed_after, cursor)
                for message in batch:
                    cursor = message.cursor
                    yield pb.StreamTransitionsResponse(attempt=message)
                if self._closing():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping; resume from your cursor")
                if not batch:
                    await self._store.sealed_signal.changed(seen, IDLE_S)

    def _sealed_after(self, cursor: int) -> list[pb.SealedAttempt]:
        """In a thread: megabytes of them would hold up the event loop."""
        return [convert.sealed_message(sealed) for sealed in self._store.sealed_after(cursor, READ_AHEAD)]

    async def AckTransitions(self, request: pb.AckTransitionsRequest, context: Any) -> pb.AckTransitionsResponse:
        """Note how far a consumer is."""
        async with answered(context):
            if not request.consumer:
                raise ValueError("consumer is empty; an acknowledgement needs the name that the stream was opened with")
            cursor = await asyncio.wrap_future(self._store.ack(request.consumer, request.cursor))
        return pb.AckTransitionsResponse(cursor=cursor)
