"""Random draws that stay the same for ever.

`random.Random.random()` is the one method whose sequence Python promises not to change between versions, so every
draw of the generator is built from it alone: the same seed gives the same bytes on any Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A stream of draws named by its parts, e.g. `Draws(seed, "rows", "zoo")`: streams do not disturb each other."""

    def __init__(self, *name: object) -> None:
        text = "\x1f".join(str(part) for part in name)
        self._random = Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"))

    def index(self, n: int) -> int:
        """A uniform index in 0..n-1; ValueError when there is nothing to draw from."""
        if n <= 0:
            raise ValueError(f"cannot draw an index out of {n} items: give at least one")
        return min(int(self._random.random() * n), n - 1)

    def choice(self, items: Sequence[T]) -> T:
        """One item, uniformly."""
        return items[self.index(len(items))]

    def mostly_first(self, items: Sequence[T], share: float = 0.65) -> T:
        """The first item with probability `share`, else one of the others: usage has a plain form and a tail."""
        return items[0] if len(items) == 1 or self.chance(share) else self.choice(items[1:])

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random.random() < probability

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All items in a random order (Fisher-Yates)."""
        result = list(items)
        for i in range(len(result) - 1, 0, -1):
            j = self.index(i + 1)
            result[i], result[j] = result[j], result[i]
        return result

    def sample(self, items: Sequence[T], n: int) -> list[T]:
        """`n` different positions of `items`, in random order."""
        if n > len(items):
            raise ValueError(f"cannot draw {n} different items out of {len(items)}")
        return self.shuffled(items)[:n]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """One item with probability proportional to its weight."""
        point = self._random.random() * sum(weights)
        for item, weight in zip(items, weights, strict=True):
            point -= weight
            if point < 0:
                return item
        return items[-1]
