"""Batches of random tokens in the shapes of real ones, seen as transitions and as the rival's padded rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lightning_jax.batch import BatchConfig
from lightning_jax.types import ScoredTransition, Transition


@dataclass(frozen=True)
class Workload:
    """Transitions of one update and how each layout lays them out."""

    transitions: tuple[ScoredTransition, ...]
    layouts: dict[str, BatchConfig]
    rival_rows: int  # rows that the rival computes at a time
    rival_timed: bool = True  # else it only says whether both compute the same

    @property
    def tokens(self) -> int:
        """Tokens of one row per transition, without padding."""
        return sum(s.transition.prompt_ids.size + s.transition.response_ids.size for s in self.transitions)

    def padded(self) -> dict[str, np.ndarray[Any, Any]]:
        """For the rival: prompts on the left and responses on the right of one border, as TRL lays them out."""
        prompts = max(s.transition.prompt_ids.size for s in self.transitions)
        responses = max(s.transition.response_ids.size for s in self.transitions)
        count = len(self.transitions)
        ids = np.zeros((count, prompts + responses), np.int64)
        attended, trained = np.zeros_like(ids), np.zeros((count, responses), np.float32)
        sampled = np.zeros_like(trained)
        for row, scored in enumerate(self.transitions):
            t = scored.transition
            where = slice(prompts - t.prompt_ids.size, prompts + t.response_ids.size)
            ids[row, where] = np.concatenate([t.prompt_ids, t.response_ids])
            attended[row, where] = 1
            trained[row, : t.response_ids.size] = 1
            sampled[row, : t.response_ids.size] = t.rollout_logps
        advantages = np.array([s.advantage for s in self.transitions], np.float32)
        return {"ids": ids, "attended": attended, "trained": trained, "advantages": advantages, "sampled": sampled}


def one_row(tokens: int, rows: int, entries: int) -> BatchConfig:
    """Micro-batches of exactly `rows` rows of `tokens` tokens, with `entries` loss entries a row."""
    return BatchConfig(
        buckets=(tokens,),
        micro_batch_tokens=rows * tokens,
        short_rows=False,
        entries_per_token=entries / tokens,
    )


def layout(config: BatchConfig, name: str) -> BatchConfig:
    """`config` with another layout."""
    return replace(config, layout=name)  # type: ignore[arg-type]


def independent(vocabulary: int) -> Workload:
    """8 rows of 512 tokens that share nothing, loss on the last 256."""
    rng = np.random.default_rng(0)
    calls = [_call(rng, rng.integers(1, vocabulary, 256), 256, vocabulary, task=f"t{i}") for i in range(8)]
    return Workload(tuple(calls), {"rows": layout(one_row(512, 2, 256), "rows")}, rival_rows=8)


def samples(vocabulary: int) -> Workload:
    """4 tasks of 8 samples: prompts of 384 tokens, responses of 48."""
    rng = np.random.default_rng(1)
    calls = []
    for task in range(4):
        prompt = rng.integers(1, vocabulary, 384)
        calls += [_call(rng, prompt, 48, vocabulary, task=f"t{task}", sample=i) for i in range(8)]
    layouts = {
        "trie": one_row(384 + 8 * 47, 2, 8 * 48),
        "rows": layout(one_row(431, 2, 48), "rows"),
    }
    return Workload(tuple(calls), layouts, rival_rows=8)


def turns(vocabulary: int) -> Workload:
    """4 samples of a task, 5 calls each: the prompt starts at 128 tokens and grows by 64 a call."""
    rng = np.random.default_rng(2)
    calls = []
    start = rng.integers(1, vocabulary, 128)
    for sample in range(4):
        prompt = start
        for index in range(5):
            call = _call(rng, prompt, 32, vocabulary, task="t", sample=sample, index=index)
            calls.append(call)
            prompt = np.concatenate([prompt, call.transition.response_ids, rng.integers(1, vocabulary, 32)])
    chain = 128 + 5 * 32 + 4 * 32  # a whole rollout
    layouts = {
        "trie": one_row(128 + 4 * (chain - 128), 1, 4 * 5 * 32),
        "rows": layout(one_row(chain, 2, 2 * 32), "rows"),
        "concatenated": layout(one_row(chain, 2, 5 * 32), "concatenated"),
    }
    return Workload(tuple(calls), layouts, rival_rows=8, rival_timed=False)


WORKLOADS = {"independent": independent, "samples": samples, "turns": turns}


def _call(
    rng: np.random.Generator,
    prompt: Sequence[int] | np.ndarray[Any, Any],
    response: int,
    vocabulary: int,
    *,
    task: str,
    sample: int = 0,
    index: int = 0,
) -> ScoredTransition:
    transition = Transition(
        call_id=f"{task}-{sample}-{index}",
        index=index,
        agent="a",
        prompt_ids=np.asarray(prompt, np.int32),
        response_ids=rng.integers(1, vocabulary, response).astype(np.int32),
        rollout_logps=np.full(response, -np.log(vocabulary), np.float32),
        temperature=1.0,
        policy_version=0,
        finish_reason="stop",
    )
    return ScoredTransition(transition, task, f"{task}-{sample}", float(rng.choice([-1.0, 1.0])), 1.0, 1.0)
