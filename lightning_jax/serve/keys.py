"""Named API keys with scopes: who may sample, who may send, who may do everything.

Invariant: a key's secret is compared in constant time and appears in no repr, log line or error; its name does.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_jax.configuration import check_keys, check_name

SCOPES = ("infer", "ingest", "admin")
"""infer: calls that belong to no rollout. ingest: traces, rewards and calls (gRPC, OTLP). admin: everything."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A bearer key. ValueError for an empty name or secret, or for a scope that isn't known."""

    name: str
    secret: str = field(repr=False)
    scopes: frozenset[str]

    def __post_init__(self) -> None:
        if not self.name or not self.secret:
            raise ValueError(f"API key {self.name!r} needs a name and a key that is not empty")
        if not self.scopes:
            raise ValueError(f"API key {self.name!r} has no scopes; give it some of {', '.join(SCOPES)}")
        for scope in self.scopes:
            check_name(scope, SCOPES, f"scope of API key {self.name!r}")

    @classmethod
    def from_mapping(cls, name: str, values: Any) -> ApiKey:
        """From `{key: ..., scopes: [...]}`, or with key_env, the environment variable that holds the key.

        ValueError names what is missing, never the key.
        """
        check_keys(values, ("key", "key_env", "scopes"), f"API key {name!r}") if isinstance(values, Mapping) else None
        scopes = values.get("scopes") if isinstance(values, Mapping) else None
        given = [values.get("key"), values.get("key_env")] if isinstance(values, Mapping) else []
        if not isinstance(scopes, list | tuple) or [isinstance(v, str) for v in given].count(True) != 1:
            raise ValueError(
                f"API key {name!r} must be {{key: <secret>, scopes: [infer, ingest or admin]}}, or have key_env, the "
                "name of an environment variable, in place of key"
            )
        secret, variable = given
        if variable is not None and not (secret := os.environ.get(variable, "")):
            raise ValueError(f"API key {name!r} is to be in the environment variable {variable}, which is not set")
        return cls(name, str(secret), frozenset(map(str, scopes)))

    @classmethod
    def unnamed(cls, secret: str, scopes: Sequence[str]) -> ApiKey:
        """One without a name, called by the first digits of its hash."""
        return cls(f"key-{hashlib.sha256(secret.encode()).hexdigest()[:8]}", secret, frozenset(scopes))

    def allows(self, scope: str) -> bool:
        """Whether it may do what takes `scope`."""
        return scope in self.scopes or "admin" in self.scopes


def find_key(keys: Sequence[ApiKey], token: str) -> ApiKey | None:
    """The key that a bearer token is. All are compared, each in constant time: how long it takes tells nothing."""
    found = None
    for key in keys:
        if hmac.compare_digest(token.encode(), key.secret.encode()):
            found = key
    return found
