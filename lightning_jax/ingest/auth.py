"""Who may call what. Admins run the queue and the weights; an attempt's token writes its own rewards and spans only.

Invariant: a token nobody was given is refused everywhere. Without a configured admin key everybody who presents no
token is an admin, which is why the server then listens on loopback only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from lightning_jax.ingest.grants import AttemptGrant, same_key
from lightning_jax.ingest.store import Store

# What an attempt's token is good for; everything else is for admins, health and reflection for anybody.
ATTEMPT_METHODS = frozenset(
    {
        "/lightning.v1.RewardService/RecordRewards",
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    }
)
OPEN_PREFIXES = ("/grpc.health.v1.Health/", "/grpc.reflection.")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: an admin (``grant is None``) or the agent of one attempt."""

    grant: AttemptGrant | None


class Authenticator:
    """Turns call metadata into a Caller."""

    def __init__(self, store: Store, admin_key: str | None) -> None:
        self._store = store
        self._admin_key = admin_key

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """The caller behind a request, or None for one with no valid token."""
        token = bearer_token(metadata)
        if token is None:
            return None if self._admin_key else Caller(None)
        if self._admin_key and same_key(token, self._admin_key):
            return Caller(None)
        grant = self._store.authorize(token)
        return None if grant is None else Caller(grant)


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token of ``authorization: Bearer <token>``; None where the header is absent, "" where it is malformed."""
    for key, value in metadata:
        if key.lower() == "authorization":
            scheme, _, token = (value.decode("latin-1") if isinstance(value, bytes) else value).partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return None


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Refuses a call before its message is looked at."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Continue with the real handler, or with one that aborts."""
        method = handler_call_details.method
        if method.startswith(OPEN_PREFIXES):
            return await continuation(handler_call_details)
        caller = self._authenticator.caller(handler_call_details.invocation_metadata or ())
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if caller is None:
            message = "no valid bearer token; send authorization: Bearer <admin key or the attempt's api_key>"
            return _refusal(handler, grpc.StatusCode.UNAUTHENTICATED, message)
        if caller.grant is not None and method not in ATTEMPT_METHODS:
            message = f"the token of attempt {caller.grant.attempt_id!r} may not call {method}; it takes the admin key"
            return _refusal(handler, grpc.StatusCode.PERMISSION_DENIED, message)
        return handler


def _refusal(handler: Any, code: grpc.StatusCode, message: str) -> Any:
    """A handler of the same kind (unary or streaming) that aborts."""

    async def abort_unary(_request: Any, context: Any) -> None:
        await context.abort(code, message)

    async def abort_stream(_request: Any, context: Any) -> Any:
        await context.abort(code, message)
        yield

    kinds = {
        (False, False): (grpc.unary_unary_rpc_method_handler, abort_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, abort_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, abort_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, abort_stream),
    }
    make, abort = kinds[(handler.request_streaming, handler.response_streaming)]
    return make(
        abort,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
