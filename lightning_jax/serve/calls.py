"""What a call is given before it is sampled: its number, its seed, its id, and the name of who speaks.

Invariant: a seed depends on the rollout's seed, the prompt and how often that prompt came before in the attempt, never
on arrival order or the clock; so concurrent sub-agents get the same samples however they interleave.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_jax.types import Call, IntArray


@dataclass(slots=True)
class _Attempt:
    calls: int = 0
    prompts: Counter[bytes] = field(default_factory=Counter)


class CallNumbers:
    """Counts calls and repeated prompts per attempt. The oldest attempts are forgotten beyond `capacity`.

    `learn` says what is recorded of an attempt that isn't known: after a restart the numbers go on where they were. A
    call that was in flight was never recorded; its retry gets its number and its seed.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()

    def __contains__(self, attempt_id: str) -> bool:
        return attempt_id in self._attempts

    def learn(self, attempt_id: str, calls: Sequence[Call]) -> None:
        """Go on from what is recorded of an attempt, unless it is known already."""
        if attempt_id not in self._attempts:
            self._attempts[attempt_id] = _recalled(calls)
        while len(self._attempts) > self._capacity:
            self._attempts.popitem(last=False)

    def take(self, attempt_id: str, prompt_ids: IntArray) -> tuple[int, int]:
        """(sequence of the call within the attempt, occurrence of this prompt), both from 0. KeyError: not learnt."""
        attempt = self._attempts[attempt_id]
        self._attempts.move_to_end(attempt_id)
        digest = _digest(prompt_ids)
        sequence, occurrence = attempt.calls, attempt.prompts[digest]
        attempt.calls += 1
        attempt.prompts[digest] += 1
        return sequence, occurrence


def _recalled(calls: Sequence[Call]) -> _Attempt:
    known = max((call.sequence + 1 for call in calls), default=0)
    return _Attempt(known, Counter(_digest(call.prompt_ids) for call in calls))


def _digest(prompt_ids: IntArray) -> bytes:
    return hashlib.blake2b(prompt_ids.astype("<i4").tobytes(), digest_size=16).digest()


def call_seed(rollout_seed: int, prompt_ids: IntArray, occurrence: int) -> int:
    """u32 seed of a call: blake2b of the rollout's seed, the prompt's ids and the occurrence."""
    digest = hashlib.blake2b(digest_size=4)
    digest.update((rollout_seed % 2**64).to_bytes(8, "little"))
    digest.update(occurrence.to_bytes(8, "little"))
    digest.update(prompt_ids.astype("<i4").tobytes())
    return int.from_bytes(digest.digest(), "little")


def free_seed(client_seed: int | None) -> int:
    """u32 seed of a call of no rollout: the client's wish, else a random one."""
    return secrets.randbits(32) if client_seed is None else client_seed % 2**32


def new_call_id() -> str:
    """A generation id, unique over servers and restarts."""
    return secrets.token_hex(12)


def agent_key(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Who speaks, without OpenTelemetry: a hash of the system prompts and the sorted names of the tools."""
    digest = hashlib.blake2b(digest_size=8)
    for message in messages:
        if message["role"] in ("system", "developer"):
            digest.update(b"\x00" + str(message["content"]).encode("utf-8", "surrogatepass"))
    names = sorted(str(tool["function"]["name"]) for tool in tools)
    digest.update("\x01".join(["", *names]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
