"""The capability an agent is handed: a bearer token bound to one attempt.

Invariant: a token is known in clear only to whom it was issued; the store keeps its SHA-256. The cache below only
spares database reads on every HTTP request; whether an attempt may still be written to is decided again inside each
transaction.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection, Row, select

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.records import rollout_of

KEY_PREFIX = "ljx-"
MAX_NOBODYS = 4096
AttemptState = Literal["running"] | types.AttemptStatus


@dataclass(frozen=True, slots=True)
class AttemptGrant:
    """Whose call it is, and whether the attempt still takes calls (``status == "running"``)."""

    rollout: types.Rollout
    attempt_id: str
    status: AttemptState


def new_key() -> str:
    """A fresh bearer token with 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(api_key: str) -> bytes:
    """What is stored of a token, 32 bytes. No salt or stretching: the token itself is 256 random bits."""
    return hashlib.sha256(api_key.encode("utf-8", "surrogatepass")).digest()


def same_key(given: str, expected: str) -> bool:
    """Compare two tokens in constant time."""
    return hmac.compare_digest(key_hash(given), key_hash(expected))


class GrantCache:
    """Grants by attempt and by key hash, oldest out first; safe to use from any thread."""

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._grants: dict[str, AttemptGrant] = {}
        self._hash_of: dict[str, bytes] = {}
        self._attempt_of: dict[bytes, str] = {}
        self._changes = 0
        self._nobodys: dict[bytes, None] = {}  # hashes of tokens that nobody was given, oldest first

    @property
    def changes(self) -> int:
        """How often an attempt ended or got a new token; what was read before a change may be out of date after it."""
        return self._changes

    def put_read(self, grant: AttemptGrant, hashed: bytes, changes: int) -> None:
        """Remember what a reader found, unless something changed since ``changes`` was read."""
        with self._lock:
            if changes == self._changes:
                self._put(grant, hashed)

    def put_issued(self, grant: AttemptGrant, hashed: bytes) -> None:
        """Remember a grant just issued; a token issued anew replaces the old one."""
        with self._lock:
            self._changes += 1
            self._put(grant, hashed)

    def _put(self, grant: AttemptGrant, hashed: bytes) -> None:
        self._forget(grant.attempt_id)
        while len(self._grants) >= self._capacity:
            self._forget(next(iter(self._grants)))
        self._grants[grant.attempt_id] = grant
        self._hash_of[grant.attempt_id] = hashed
        self._attempt_of[hashed] = grant.attempt_id

    def set_status(self, attempt_id: str, status: AttemptState) -> None:
        """Note that an attempt has ended."""
        with self._lock:
            self._changes += 1
            if attempt_id in self._grants:
                self._grants[attempt_id] = replace(self._grants[attempt_id], status=status)

    def by_attempt(self, attempt_id: str) -> AttemptGrant | None:
        """The grant of an attempt, if remembered."""
        with self._lock:
            return self._grants.get(attempt_id)

    def by_hash(self, hashed: bytes) -> AttemptGrant | None:
        """The grant a token's hash belongs to, if remembered."""
        with self._lock:
            attempt_id = self._attempt_of.get(hashed)
            if attempt_id is None or not hmac.compare_digest(self._hash_of[attempt_id], hashed):
                return None
            return self._grants[attempt_id]

    def put_nobodys(self, hashed: bytes) -> None:
        """Remember that a token is nobody's, for good: tokens are random, so that no later one is the same."""
        with self._lock:
            while len(self._nobodys) >= MAX_NOBODYS:
                del self._nobodys[next(iter(self._nobodys))]
            self._nobodys[hashed] = None

    def is_nobodys(self, hashed: bytes) -> bool:
        """Whether a token is remembered as nobody's."""
        return hashed in self._nobodys

    def _forget(self, attempt_id: str) -> None:
        if self._grants.pop(attempt_id, None) is not None:
            self._attempt_of.pop(self._hash_of.pop(attempt_id), None)


_attempts = schema.attempts.c
_GRANT = select(_attempts.attempt_id, _attempts.status, _attempts.key_hash, schema.rollouts).join(
    schema.rollouts, schema.rollouts.c.rollout_id == _attempts.rollout_id
)


def read_by_hash(connection: Connection, hashed: bytes) -> tuple[AttemptGrant, bytes] | None:
    """The grant whose token has this hash, and the hash as stored."""
    return _grant_of(connection.execute(_GRANT.where(_attempts.key_hash == hashed)).one_or_none())


def read_by_attempt(connection: Connection, attempt_id: str) -> tuple[AttemptGrant, bytes] | None:
    """The grant of an attempt, and the stored hash of its token."""
    return _grant_of(connection.execute(_GRANT.where(_attempts.attempt_id == attempt_id)).one_or_none())


def _grant_of(row: Row[Any] | None) -> tuple[AttemptGrant, bytes] | None:
    if row is None:
        return None
    fields = row._mapping
    return AttemptGrant(rollout_of(fields), fields["attempt_id"], fields["status"]), bytes(fields["key_hash"])
