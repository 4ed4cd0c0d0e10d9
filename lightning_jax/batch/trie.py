"""A prefix trie as flat arrays: tokens that several sequences begin with are laid down once.

Nodes stand in depth-first order, so that a subtree is an interval and `j is an ancestor of i (or i itself)` is
`j <= i < subtree_end[j]`: the whole attention mask from one integer per token. Sequences come sorted, which makes
the trie a matter of the longest common prefix (LCP) of neighbours. Several tries may follow one another in a row; a
root's interval ends where the next begins, so they cannot see each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_jax.types import IntArray


@dataclass(frozen=True, slots=True)
class Trie:
    """M nodes in depth-first order, and where each of the S sequences lies in them."""

    tokens: IntArray  # i32[M]
    positions: IntArray  # i32[M], depth: the token's place in its own sequence
    subtree_end: IntArray  # i32[M], one past the last descendant
    paths: tuple[IntArray, ...]  # S arrays i32[length]: node of each token of each sequence


def sort_key(tokens: IntArray) -> bytes:
    """Bytes that sort as the token sequences do (big-endian, token ids are not negative)."""
    return tokens.astype(">u4").tobytes()


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Length of the longest common prefix."""
    n = min(a.size, b.size)
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if differ.size else n


def build_trie(sequences: Sequence[IntArray], shared: Sequence[int]) -> Trie:
    """Lay sorted sequences out as tries.

    sequences: sorted within each run that may share; shared[i]: how many leading tokens sequence i takes from
    sequence i-1 (its LCP, or 0 to begin a new trie; shared[0] is ignored).
    """
    size = sum(s.size - (c if i else 0) for i, (s, c) in enumerate(zip(sequences, shared, strict=True)))
    tokens, positions = np.empty(size, np.int32), np.empty(size, np.int32)
    subtree_end = np.empty(size, np.int32)
    path = np.empty(0, np.int32)
    paths: list[IntArray] = []
    count = 0
    for number, sequence in enumerate(sequences):
        keep = shared[number] if number else 0
        subtree_end[path[keep:]] = count
        fresh = np.arange(count, count + sequence.size - keep, dtype=np.int32)
        tokens[fresh] = sequence[keep:]
        positions[fresh] = np.arange(keep, sequence.size, dtype=np.int32)
        path = np.concatenate([path[:keep], fresh])
        paths.append(path)
        count += fresh.size
    subtree_end[path] = count
    return Trie(tokens, positions, subtree_end, tuple(paths))
