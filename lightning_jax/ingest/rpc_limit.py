"""How many RPCs run at a time; the others are told when to come back.

gRPC's own limit (maximum_concurrent_rpcs) refuses without a RetryInfo, and exporters then drop what they sent.
Health checks and reflection are never refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from lightning_jax.ingest.auth import OPEN_PREFIXES
from lightning_jax.ingest.handlers import aborting, behaviour, remade
from lightning_jax.ingest.status import come_back

MAX_CONCURRENT_RPCS = 4096  # long polls of runners count; exports have narrower bounds of their own


class RpcLimit(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Refuses RPCs beyond ``limit`` with UNAVAILABLE and a RetryInfo. One event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Continue with the real handler, counted, or with one that refuses before the message is looked at."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(OPEN_PREFIXES):
            return handler
        return aborting(handler, self._refuse) if self._full else self._counted(handler)

    @property
    def _full(self) -> bool:
        return self._running >= self._limit

    async def _refuse(self, context: Any) -> None:
        await come_back(context, f"{self._running} RPCs are running and the limit is {self._limit}; come back soon")

    @contextmanager
    def _place(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _counted(self, handler: Any) -> Any:
        function = behaviour(handler)

        async def unary(request: Any, context: Any) -> Any:
            if self._full:  # others began while this message came in
                await self._refuse(context)
            with self._place():
                return await function(request, context)

        async def stream(request: Any, context: Any) -> Any:
            if self._full:
                await self._refuse(context)
            with self._place():
                async for response in function(request, context):
                    yield response

        return remade(handler, stream if handler.response_streaming else unary)
