"""Whose call is it: the bearer key says, the path may say, and both must agree.

`CallSink` is what serve needs of a store: grants and a durable place for calls. Anything with these methods will do.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from lightning_jax.loopback import is_loopback
from lightning_jax.serve.config import ServeConfig
from lightning_jax.serve.errors import ApiError
from lightning_jax.serve.keys import find_key
from lightning_jax.types import Call, CallMark, Rollout

ATTEMPT_KEY_PREFIX = "ljx-"  # keys of attempts; never taken for an anonymous caller's placeholder


class Grant(Protocol):
    """An attempt that a key or a path stands for."""

    @property
    def rollout(self) -> Rollout:
        """The rollout it is an attempt at."""

    @property
    def attempt_id(self) -> str:
        """Its id."""

    @property
    def status(self) -> str:
        """ "running" while it takes calls."""


class CallSink(Protocol):
    """Where calls go, and who knows whose they are."""

    def record_call(self, call: Call) -> Future[None]:
        """Resolves once the call is durable; fails with AttemptEnded where the attempt has ended."""

    def mark_calls(self, marks: Sequence[CallMark]) -> Future[None]:
        """Note what became of recorded calls; resolves once that is durable."""

    def is_settled(self, api_key: str) -> bool:
        """Whether `authorize` answers from memory."""

    def authorize(self, api_key: str) -> Grant | None:
        """The attempt a bearer key was given to; may read, and wait."""

    def calls_of_request(self, attempt_id: str, request_key: str) -> Sequence[Call]:
        """What was recorded of an attempt for requests of this digest, by sequence."""

    def list_calls(self, attempt_id: str) -> Sequence[Call]:
        """What was recorded of an attempt, by sequence."""

    def attempt_grant(self, rollout_id: str, attempt_id: str) -> Grant | None:
        """The attempt a path names."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls."""

    scope: str  # retries are matched within it
    grant: Grant | None  # None: a call of no rollout, served but not recorded

    @property
    def name(self) -> str:
        """What logs may say: an attempt's id, a key's name; never a key."""
        return "anonymous" if self.scope.startswith("anonymous:") else self.scope


async def identify(
    sink: CallSink, config: ServeConfig, authorization: str, path: tuple[str, str] | None, client_host: str
) -> Identity:
    """Decide from the Authorization header and the (rollout, attempt) of the path; ApiError 401, 403, 404 or 410.

    What has to be read is read in a thread: the event loop has others to serve.
    """
    key = bearer(authorization)
    grant = None
    if key:
        grant = sink.authorize(key) if sink.is_settled(key) else await asyncio.to_thread(sink.authorize, key)
    if path is not None:
        rollout_id, attempt_id = path
        if grant is None and config.open:
            grant = await asyncio.to_thread(sink.attempt_grant, rollout_id, attempt_id)
            if grant is None:
                raise ApiError(404, f"no attempt {attempt_id!r} of rollout {rollout_id!r}", code="unknown_attempt")
        if grant is None:
            raise ApiError(401, "this path needs the API key its attempt was handed", code="invalid_api_key")
        if (grant.rollout.rollout_id, grant.attempt_id) != path:
            raise ApiError(
                403,
                f"the API key belongs to attempt {grant.attempt_id!r}, the path names {attempt_id!r}: "
                "use the base_url and api_key of the same attempt",
                code="wrong_attempt",
            )
    if grant is not None:
        if grant.status != "running":
            raise ApiError(410, f"attempt {grant.attempt_id!r} has ended ({grant.status})", code="attempt_ended")
        return Identity(f"attempt:{grant.attempt_id}", grant)
    if (known := _known(config, key)) is not None:
        name, scopes = known
        if not scopes & {"infer", "admin"}:
            raise ApiError(
                403,
                f"API key {name!r} has the scopes {sorted(scopes)}; sampling outside of rollouts takes infer or admin",
                code="insufficient_scope",
            )
        return Identity(f"key:{name}", None)
    if config.anonymous and (not client_host or is_loopback(client_host)) and not key.startswith(ATTEMPT_KEY_PREFIX):
        return Identity(f"anonymous:{key}", None)
    raise ApiError(401, "unknown API key", code="invalid_api_key")


def _known(config: ServeConfig, token: str) -> tuple[str, frozenset[str]] | None:
    """(name, scopes) of a configured key."""
    if config.admin_key and hmac.compare_digest(token.encode(), config.admin_key.encode()):
        return "admin", frozenset({"admin"})
    found = find_key(config.keys, token)
    return None if found is None else (found.name, found.scopes)


def check_operator(config: ServeConfig, authorization: str, client_host: str) -> None:
    """Let whoever is on this machine, or has an admin key, see what concerns all; ApiError 401 or 403 for others."""
    if not client_host or is_loopback(client_host):
        return
    known = _known(config, bearer(authorization))
    if known is None:
        raise ApiError(401, "from another machine this takes an admin key", code="invalid_api_key")
    if "admin" not in known[1]:
        raise ApiError(403, f"API key {known[0]!r} lacks the scope admin", code="insufficient_scope")


def check_exposure(host: str, config: ServeConfig) -> None:
    """Refuse to listen where others can reach the server and nothing keeps them out: ValueError with the mend."""
    if is_loopback(host):
        return
    if not config.admin_key and not config.keys:
        raise ValueError(
            f"host is {host!r}, which other machines can reach, and there is no API key: set LJX_API_KEY (admin_key), "
            "or serve.keys: {name: {key: <secret>, scopes: [infer]}}, or listen on 127.0.0.1"
        )
    if config.open:
        raise ValueError(f"host is {host!r}, which other machines can reach, and serve.open=true lets anybody in")


def bearer(authorization: str) -> str:
    """The token of an Authorization header; "" where there is none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
