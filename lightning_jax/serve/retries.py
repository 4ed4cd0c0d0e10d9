"""A client's retry is the same call: it joins the generation under way, or gets the finished answer again.

OpenAI's SDKs send a retry as the same bytes with `x-stainless-retry-count` above 0; others send an Idempotency-Key. The
same bytes without a mark are a new sample (self-consistency sends them on purpose).
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

RETRY_COUNT = "x-stainless-retry-count"
IDEMPOTENCY_KEY = "idempotency-key"


class Joinable(Protocol):
    """What the table needs to know of an answer."""

    @property
    def failed(self) -> bool:
        """Ended in an error: a retry starts anew."""

    @property
    def waiters(self) -> int:
        """Connections that wait for it."""

    @property
    def delivered(self) -> bool:
        """Its last byte was sent to somebody."""


J = TypeVar("J", bound=Joinable)
Key = tuple[str, str, bytes, str]


@dataclass(slots=True)
class _Entry(Generic[J]):
    answers: list[tuple[float, J]] = field(default_factory=list)  # (when it was begun, answer)
    recalled: bool = False  # what an earlier process recorded is among them


def retry_key(scope: str, path: str, raw: bytes, headers: Mapping[str, str]) -> tuple[Key, bool]:
    """The identity of a request, and whether it is marked as possibly sent before."""
    idempotency = headers.get(IDEMPOTENCY_KEY, "")
    count = headers.get(RETRY_COUNT, "0")
    key = (scope, path, hashlib.blake2b(raw, digest_size=16).digest(), idempotency)
    return key, bool(idempotency) or (count.isdigit() and int(count) > 0)


def request_key(key: Key) -> str:
    """What a record of the call keeps of it: the attempt is known there."""
    _, path, digest, idempotency = key
    text = f"{path}\0{idempotency}\0".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text + digest, digest_size=16).hexdigest()


class RetryTable(Generic[J]):
    """Answers that a retry may still claim. One event loop only."""

    def __init__(self, ttl_s: float, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._capacity = capacity
        self._clock = clock
        self._entries: OrderedDict[Key, _Entry[J]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Key) -> J | None:
        """The answer a marked request belongs to: one that nobody got and nobody waits for, before any other."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        oldest = self._clock() - self._ttl_s
        entry.answers = [(begun, a) for begun, a in entry.answers if begun >= oldest and not a.failed]
        answers = [a for _, a in entry.answers]
        if not answers:
            del self._entries[key]
            return None
        return min(reversed(answers), key=lambda a: (a.delivered, a.waiters > 0))

    def answers(self, key: Key) -> list[J]:
        """All that are remembered of a request."""
        entry = self._entries.get(key)
        return [answer for _, answer in entry.answers] if entry is not None else []

    def is_recalled(self, key: Key) -> bool:
        """Whether `recall` was called for it."""
        entry = self._entries.get(key)
        return entry is not None and entry.recalled

    def recall(self, key: Key, answers: Sequence[J]) -> None:
        """Put in front what an earlier process recorded."""
        if answers:
            entry = self._entries.setdefault(key, _Entry())
            entry.answers = [*((self._clock(), answer) for answer in answers), *entry.answers]
        if key in self._entries:
            self._entries[key].recalled = True

    def add(self, key: Key, answer: J) -> None:
        """Remember a new answer, forgetting the oldest beyond the capacity or the time to live."""
        now = self._clock()
        self._entries.setdefault(key, _Entry()).answers.append((now, answer))
        self._entries.move_to_end(key)
        while self._entries:
            first = next(iter(self._entries))
            newest = self._entries[first].answers[-1][0]
            if len(self._entries) <= self._capacity and now - newest <= self._ttl_s:
                return
            del self._entries[first]
