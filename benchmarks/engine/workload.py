"""What is measured: prompts as token ids, the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """`prompts` i32[B,P], each to be continued by `new` tokens."""

    prompts: IntArray
    new: int


def batch(seed: int, vocabulary: int, *, rows: int, prompt: int, shared: int, new: int) -> Batch:
    """`rows` prompts whose first `shared` tokens are equal; another seed, another prefix: no round finds it cached."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(0, vocabulary, (rows, prompt), dtype=np.int32)
    prompts[:, :shared] = prompts[0, :shared]
    return Batch(prompts, new)


@dataclass(frozen=True)
class AgentLoad:
    """Rollouts shaped like write, check, rewrite: every call's prompt is the last one, its answer, and an observation.

    first i32[R,P]: all begin with one system prompt; observations i32[R,calls-1,O].
    """

    first: IntArray
    observations: IntArray
    new: int


def agents(
    seed: int, vocabulary: int, *, rollouts: int, calls: int, system: int, task: int, observation: int, new: int
) -> AgentLoad:
    """`rollouts` of `calls` each; sizes in tokens."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, vocabulary, (rollouts, system + task), dtype=np.int32)
    first[:, :system] = first[0, :system]
    return AgentLoad(first, rng.integers(0, vocabulary, (rollouts, calls - 1, observation), dtype=np.int32), new)
