"""The prefix cache's book: which chunk of which exact token prefix lies where in the device's pool.

A chunk's keys and values depend on all tokens up to its end and on nothing else, and a chunk always starts at a
multiple of the chunk size; so a copy has the bits that computing it again would give. Keys are chained hashes of the
tokens.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Set

from lightning_jax.types import IntArray


def chunk_keys(tokens: IntArray, chunk: int) -> list[bytes]:
    """One key per chunk of tokens i32[n], a shorter last one included; each stands for the whole prefix to its end."""
    data, keys, key = tokens.tobytes(), [], b""
    for start in range(0, len(data), 4 * chunk):
        key = hashlib.blake2b(key + data[start : start + 4 * chunk], digest_size=16).digest()
        keys.append(key)
    return keys


class PrefixCache:
    """Key → place in the pool, least recently used out first. capacity 0: always misses."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.evicted = 0
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(capacity - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._places)

    def find(self, key: bytes) -> int | None:
        """Place of a chunk, or None."""
        place = self._places.get(key)
        if place is not None:
            self._places.move_to_end(key)
        return place

    def touch(self, keys: list[bytes]) -> None:
        """Mark chunks as just used, the first of a prompt last: a chunk without those before it is of no use."""
        for key in reversed(keys):
            if key in self._places:
                self._places.move_to_end(key)

    def insert(self, key: bytes, keep: Set[bytes] = frozenset()) -> int | None:
        """A place for a chunk about to be computed, evicting the least recently used; None where all must be kept.

        keep: chunks computed by the same dispatch, whose places are being written and cannot be given away again.
        """
        if not self._free:
            victim = next((old for old in self._places if old not in keep), None)
            if victim is None:
                return None
            self._free.append(self._places.pop(victim))
            self.evicted += 1
        place = self._free.pop()
        self._places[key] = place
        return place

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._free.extend(self._places.values())
        self._places.clear()
