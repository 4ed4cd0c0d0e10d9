"""Host-side book of the slots: who sits where, what is left to prefill, what the device must be told.

The device learns of changes only through the control array that rides on the next decode dispatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lightning_jax.serve.config import CONTROL_COLUMNS, EngineConfig
from lightning_jax.serve.generation import Alternatives, Generation, Matcher
from lightning_jax.serve.prefix import PrefixCache, chunk_keys
from lightning_jax.types import IntArray

NOWHERE = int(np.iinfo(np.int32).max)  # a place past the pool's end: dropped by the device


@dataclass(slots=True, eq=False)
class Occupant:
    """A sequence in a slot."""

    slot: int
    generation: Generation
    prefix: IntArray  # i32[P-1]: all of the prompt but the token that decoding starts with
    keys: list[bytes]  # of the chunks of prefix
    version: int
    end: int  # length at which the sequence stops
    next_chunk: int = 0
    decoding: bool = False
    done: bool = False
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)  # mass kept of each token's distribution
    tops: list[Alternatives] = field(default_factory=list)  # one a token, where asked for
    matcher: Matcher | None = None  # where it stands in its grammar


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Chunks to copy and to compute next; a slot has its copies before its computed chunk."""

    loads: NDArray[np.int32] | None  # i32[E,3]: slot, start, place in the pool
    tokens: NDArray[np.int32] | None  # i32[R,C]
    rows: NDArray[np.int32] | None  # i32[R,3]: slot, start, place in the pool
    loaded: int  # tokens copied
    computed: int  # tokens computed


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


class SlotTable:
    """Fixed slots, their occupants and the pending control rows."""

    def __init__(self, config: EngineConfig, prefix: PrefixCache) -> None:
        self._config = config
        self._prefix = prefix
        self._free = list(range(config.slots - 1, -1, -1))
        self._control = np.zeros((config.slots, len(CONTROL_COLUMNS)), np.int32)
        self.occupants: list[Occupant | None] = [None] * config.slots
        self._prefilling: list[Occupant] = []

    @property
    def free(self) -> int:
        """Number of empty slots."""
        return len(self._free)

    @property
    def busy(self) -> int:
        """Number of occupied slots."""
        return self._config.slots - len(self._free)

    def __iter__(self) -> Iterator[Occupant]:
        return (o for o in self.occupants if o is not None)

    def seat(self, generation: Generation, version: int) -> Occupant:
        """Give a waiting request a slot; there must be a free one."""
        request = generation.request
        prompt = np.ascontiguousarray(request.prompt_ids, np.int32)
        end = min(len(prompt) + request.max_tokens, self._config.max_length)
        prefix = prompt[:-1]
        keys = chunk_keys(prefix, self._config.prefill_chunk)
        matcher = request.grammar.matcher() if request.grammar is not None else None
        occupant = Occupant(self._free.pop(), generation, prefix, keys, version, end, matcher=matcher)
        self.occupants[occupant.slot] = occupant
        self._prefix.touch(keys)
        if keys:
            self._prefilling.append(occupant)
        else:
            self._start_decoding(occupant)
        return occupant

    def vacate(self, occupant: Occupant, *, stop: bool) -> None:
        """Empty a slot. stop: the device still thinks it active."""
        occupant.done = True
        self.occupants[occupant.slot] = None
        self._free.append(occupant.slot)
        if occupant in self._prefilling:
            self._prefilling.remove(occupant)
        if stop:
            self._control[occupant.slot] = 0
            self._control[occupant.slot, 0] = 1

    def plan_prefill(self) -> PrefillPlan | None:
        """The next copies and chunks, first come first served; None when nothing is left.

        Several chunks of one prompt go in one plan: every layer writes the keys of all rows before any row looks at
        them. A chunk that another slot computes in the same plan is left for the next one, where it is a copy.
        """
        c = self._config
        loads: list[tuple[int, int, int]] = []
        rows: list[tuple[int, int, int]] = []
        tokens = np.zeros((c.prefill_rows, c.prefill_chunk), np.int32)
        in_plan: set[bytes] = set()
        loaded = computed = 0
        for occupant in tuple(self._prefilling):
            mine: set[bytes] = set()  # chunks this occupant computes in this plan
            while occupant.next_chunk < len(occupant.keys):
                key = occupant.keys[occupant.next_chunk]
                start = occupant.next_chunk * c.prefill_chunk
                piece = occupant.prefix[start : start + c.prefill_chunk]
                if key in in_plan and key not in mine:
                    break
                place = self._prefix.find(key)
                if place is not None:
                    if len(loads) == c.load_rows:
                        break
                    loads.append((occupant.slot, start, place))
                    loaded += len(piece)
                else:
                    if len(rows) == c.prefill_rows:
                        break
                    tokens[len(rows), : len(piece)] = piece
                    rows.append((occupant.slot, start, self._place(key, in_plan)))
                    mine.add(key)
                    computed += len(piece)
                occupant.next_chunk += 1
            if occupant.next_chunk == len(occupant.keys):
                self._prefilling.remove(occupant)
                self._start_decoding(occupant)
            if len(rows) == c.prefill_rows or len(loads) == c.load_rows:
                break
        if not loads and not rows:
            return None
        return PrefillPlan(
            loads=_padded(loads, c.load_rows, c.slots) if loads else None,
            tokens=tokens if rows else None,
            rows=_padded(rows, c.prefill_rows, c.slots) if rows else None,
            loaded=loaded,
            computed=computed,
        )

    def masks(self, words: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]] | None:
        """(i32[S,words], bool[S]) of what constrained sequences may draw next; None where none is decoding."""
        constrained = [(o.slot, o.matcher) for o in self if o.decoding and o.matcher is not None]
        if not constrained:
            return None
        masked, bits = np.zeros(self._config.slots, bool), np.zeros((self._config.slots, words), np.int32)
        for slot, matcher in constrained:
            matcher.fill(bits[slot])
            masked[slot] = True
        return bits, masked

    def take_control(self) -> NDArray[np.int32]:
        """The control rows collected since the last call."""
        control, self._control = self._control, np.zeros_like(self._control)
        return control

    def _place(self, key: bytes, in_plan: set[bytes]) -> int:
        """Where the pool keeps the chunk; NOWHERE without room. Copies run before their places are rewritten."""
        place = self._prefix.insert(key, in_plan)
        if place is None:
            return NOWHERE
        in_plan.add(key)
        return place

    def _start_decoding(self, occupant: Occupant) -> None:
        request = occupant.generation.request
        occupant.decoding = True
        self._control[occupant.slot] = (
            1,
            int(request.prompt_ids[-1]),
            len(occupant.prefix),
            int(np.uint32(request.seed & 0xFFFFFFFF).view(np.int32)),
            _bits(request.temperature),
            _bits(request.top_p),
            occupant.end,
            1,
            int(request.top_logprobs > 0),
        )


def _padded(rows: list[tuple[int, int, int]], count: int, slots: int) -> NDArray[np.int32]:
    out = np.zeros((count, 3), np.int32)
    out[:, 0] = slots  # past the last slot: dropped
    out[:, 2] = NOWHERE
    out[: len(rows)] = rows
    return out
