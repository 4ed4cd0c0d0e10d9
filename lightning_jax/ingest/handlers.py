"""gRPC method handlers as interceptors remake them: the same kind and wire format, another behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behaviour(handler: Any) -> Callable[..., Any]:
    """The function behind a handler."""
    functions = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    found: Callable[..., Any] = next(function for function in functions if function is not None)
    return found


def remade(handler: Any, function: Callable[..., Any]) -> Any:
    """``handler`` with ``function`` in place of its own: a coroutine function, or an async generator for streams."""
    return _MAKERS[handler.request_streaming, handler.response_streaming](
        function,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def aborting(handler: Any, abort: Callable[[Any], Any]) -> Any:
    """A handler of the same kind whose every call ends in ``await abort(context)``."""

    async def unary(_request: Any, context: Any) -> None:
        await abort(context)

    async def stream(_request: Any, context: Any) -> Any:
        await abort(context)
        yield

    return remade(handler, stream if handler.response_streaming else unary)
