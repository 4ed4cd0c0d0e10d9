"""Who may call what: admins everything, keys with scopes what those name, an attempt's token its own rewards and spans.

Invariant: a token nobody was given is refused everywhere. Without a configured admin key everybody who presents no
token is an admin, which is why the server then listens on loopback only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
import yaml

from lightning_jax.configuration import check_name
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.grants import AttemptGrant, key_hash, same_key
from lightning_jax.ingest.handlers import aborting
from lightning_jax.ingest.status import come_back
from lightning_jax.ingest.store import Store

_QUEUE = "/lightning.v1.RolloutService/"
# What a key with a scope may call. "admin" is every scope there is; health and reflection are for anybody.
SCOPES: Mapping[str, tuple[str, ...]] = {
    "traces": ("/opentelemetry.proto.collector.trace.v1.TraceService/",),
    "rewards": ("/lightning.v1.RewardService/",),
    "calls": ("/lightning.v1.CallService/",),  # policy servers of other processes
    "runner": tuple(_QUEUE + name for name in ("ClaimRollouts", "Heartbeat", "CompleteAttempt", "GetRollouts")),
    # whoever makes rollouts of its own and runs them (LightningClient.rollout)
    "client": (
        *(_QUEUE + n for n in ("EnqueueRollouts", "ClaimRollouts", "Heartbeat", "CompleteAttempt", "GetRollouts")),
        "/lightning.v1.RewardService/",
    ),
    "learner": (_QUEUE, "/lightning.v1.TransitionService/", "/lightning.v1.PolicyService/"),
    "ingest": (  # whoever sends: agents' traces, their rewards, calls of other policy servers
        "/opentelemetry.proto.collector.trace.v1.TraceService/",
        "/lightning.v1.RewardService/",
        "/lightning.v1.CallService/",
    ),
    "infer": (),  # calls of no rollout on the policy server's HTTP port; nothing here
    "admin": ("/",),
}
ATTEMPT_SCOPES = frozenset({"traces", "rewards"})  # and of these only what is its own
NO_TOKEN = "no valid bearer token; send authorization: Bearer <admin key or the attempt's api_key>"
OPEN_PREFIXES = ("/grpc.health.v1.Health/", "/grpc.reflection.")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: somebody trusted with all rollouts (``grant is None``) or the agent of one attempt."""

    grant: AttemptGrant | None
    scopes: frozenset[str] = frozenset({"admin"})

    def refusal(self, method: str) -> str:
        """Why the caller may not call ``method`` (/package.Service/Method); "" where he may."""
        scopes = self.scopes if self.grant is None else ATTEMPT_SCOPES
        if any(method.startswith(SCOPES[scope]) for scope in scopes):
            return ""
        needed = sorted(scope for scope, methods in SCOPES.items() if method.startswith(methods))
        who = "this key" if self.grant is None else f"the token of attempt {self.grant.attempt_id!r}"
        return f"{who} has the scopes {sorted(scopes)} and may not call {method}; it takes one of {needed}"


def read_keys(path: str | Path | None) -> dict[str, list[str]]:
    """The keys and scopes in a YAML file (bearer key -> list of scopes); ValueError where it holds something else."""
    if path is None:
        return {}
    try:
        keys = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"keys file {str(path)!r} cannot be read: {error}") from error
    if not isinstance(keys, dict) or not all(isinstance(scopes, list) for scopes in keys.values()):
        raise ValueError(f"keys file {str(path)!r} must map bearer keys to lists of scopes, e.g. `my-key: [traces]`")
    return {str(key): [str(scope) for scope in scopes] for key, scopes in keys.items()}


class Authenticator:
    """Turns call metadata into a Caller. ``keys`` maps more bearer keys to their scopes (ValueError: unknown one)."""

    def __init__(
        self, store: Store, admin_key: str | None, keys: Mapping[str, Collection[str]] = MappingProxyType({})
    ) -> None:
        for scopes in keys.values():
            for scope in scopes:
                check_name(scope, SCOPES, "scope of a key")
        self._store = store
        self._admin_key = admin_key
        # By hash, so that looking a key up takes the same time whatever of it is right.
        self._keys = {key_hash(key): Caller(None, frozenset(scopes)) for key, scopes in keys.items()}

    async def found(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """The same as `caller` for event loops: what memory does not hold is read in a thread."""
        pairs = tuple(metadata)
        token = bearer_token(pairs)
        if token is None or self._store.is_settled(token):
            return self.caller(pairs)
        return await asyncio.to_thread(self.caller, pairs)

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """The caller behind a request, or None for one with no valid token. Raises StoreUnavailable."""
        token = bearer_token(metadata)
        if token is None:
            return None if self._admin_key or self._keys else Caller(None)  # any key closes the door to those without
        if self._admin_key and same_key(token, self._admin_key):
            return Caller(None)
        if self._keys and (known := self._keys.get(key_hash(token))) is not None:
            return known
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
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        try:
            caller = await self._authenticator.found(handler_call_details.invocation_metadata or ())
        except StoreUnavailable as error:
            message = str(error)  # the name of an exception ends with its block
            return aborting(handler, lambda context: come_back(context, message))
        if caller is None:
            return aborting(handler, lambda context: context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN))
        if refusal := caller.refusal(method):
            return aborting(handler, lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal))
        return handler
