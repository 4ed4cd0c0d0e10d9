"""Transitions → micro-batches of a few fixed shapes, with everything the loss needs in them.

Invariant: loss and gradient of the micro-batches' sum equal those of one transition per row, unpadded. Rows hold
tokens; loss entries stand beside them, one per response token of every transition, so shared tokens can carry several
transitions' advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_jax.batch.config import BatchConfig
from lightning_jax.batch.layout import Laid, assign_buckets, canonical, lay_out, pack, subset
from lightning_jax.batch.trie import build_trie
from lightning_jax.batch.weights import token_weights
from lightning_jax.types import FloatArray, IntArray, ScoredTransition


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B rows of T tokens and N loss entries. Padding: token 0 that sees itself; entries of weight 0, transition -1."""

    tokens: IntArray  # i32[B,T], tries in depth-first order
    positions: IntArray  # i32[B,T], place of the token in its own sequence
    subtree_end: IntArray  # i32[B,T]: i sees j iff j <= i < subtree_end[j]
    entry_source: IntArray  # i32[B,N], node whose logits predict the target
    entry_target: IntArray  # i32[B,N], the token that was sampled
    entry_advantage: FloatArray  # f32[B,N]
    entry_rollout_logp: FloatArray  # f32[B,N], the engine's log-prob
    entry_weight: FloatArray  # f32[B,N], w_t of loss = Σ w_t·L_t
    entry_temperature: FloatArray  # f32[B,N], 1 where the sampler was greedy
    entry_transition: IntArray  # i32[B,N], number of the transition in Plan.transitions
    entry_first: FloatArray  # f32[B,N], 1 at a transition's first entry (its source is the last prompt token)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, T, N)."""
        rows, tokens = self.tokens.shape
        return rows, tokens, self.entry_source.shape[1]


@dataclass(frozen=True, slots=True)
class PlanStats:
    """What the layout cost and saved; all are exact counts."""

    rollouts: int
    transitions: int  # laid out
    skipped: int  # without gradient: advantage 0 or loss_weight 0
    dropped: int  # longer than the last bucket (overlong=drop)
    empty: int  # without prompt or response
    tokens_trained: int  # loss entries
    tokens_separate: int  # what one row per transition would have computed, without padding
    tokens_laid: int  # nodes
    tokens_computed: int  # with padding
    micro_batches: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One update's worth of work."""

    transitions: tuple[ScoredTransition, ...]  # canonical order; entry_transition points here
    mini_batches: tuple[tuple[MicroBatch, ...], ...]
    stats: PlanStats
    left_out: tuple[ScoredTransition, ...] = ()  # too long or empty; what they earned is still their rollout's

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """All of them, in order."""
        return [micro for mini in self.mini_batches for micro in mini]


def plan(
    transitions: Sequence[ScoredTransition],
    config: BatchConfig,
    *,
    aggregation: str = "per-rollout-mean",
    constant: float = 1024.0,
    mini_batches: int = 1,
    shuffle_seed: Sequence[int] = (0,),
    skip_zero_advantage: bool = False,
) -> Plan:
    """Lay transitions out.

    mini_batches: optimiser steps to spread them over; all rows of a rollout stay together, and so do the samples of a
    task where that keeps the sizes even. shuffle_seed: which tasks go together (unused for one mini-batch).
    skip_zero_advantage: leave out transitions with advantage 0, which keep counting in the denominators: the gradient
    of a pure policy loss is the same, for less work. Not with KL, entropy or value terms.
    Raises ValueError where a sequence is longer than the largest bucket, unless config.overlong is "drop".
    """
    ordered = canonical(transitions)
    usable = [s for s in ordered if s.transition.prompt_ids.size and s.transition.response_ids.size]
    fitting = [s for s in usable if config.overlong == "error" or _fits(s, config)]
    minis, skipped, separate, laid_tokens = [], 0, 0, 0
    for numbers in _split(fitting, mini_batches, shuffle_seed):
        weights = token_weights([fitting[n] for n in numbers], aggregation, constant=constant)
        trained = [
            (n, w)
            for n, w in zip(numbers, weights, strict=True)
            if w > 0 and not (skip_zero_advantage and fitting[n].advantage == 0)
        ]
        skipped += len(numbers) - len(trained)
        micro, nodes = _micro_batches(fitting, dict(trained), config)
        laid_tokens += nodes
        separate += sum(_length(fitting[n]) for n, _ in trained)
        if micro:
            minis.append(tuple(micro))
    every = [m for mini in minis for m in mini]
    stats = PlanStats(
        rollouts=len({s.rollout_id for s in fitting}),
        transitions=len(fitting) - skipped,
        skipped=skipped,
        dropped=len(usable) - len(fitting),
        empty=len(ordered) - len(usable),
        tokens_trained=sum(int((m.entry_transition >= 0).sum()) for m in every),
        tokens_separate=separate,
        tokens_laid=laid_tokens,
        tokens_computed=sum(m.tokens.size for m in every),
        micro_batches=len(every),
    )
    kept = {id(s) for s in fitting}
    return Plan(tuple(fitting), tuple(minis), stats, tuple(s for s in ordered if id(s) not in kept))


def empty_micro_batch(rows: int, tokens: int, entries: int) -> MicroBatch:
    """Padding only: what a micro-batch is filled into, and what warm-up compiles with."""

    def zeros(dtype: type) -> NDArray[np.generic]:
        return np.zeros((rows, entries), dtype)

    return MicroBatch(
        tokens=np.zeros((rows, tokens), np.int32),
        positions=np.zeros((rows, tokens), np.int32),
        subtree_end=np.tile(np.arange(1, tokens + 1, dtype=np.int32), (rows, 1)),
        entry_source=zeros(np.int32),  # type: ignore[arg-type]
        entry_target=zeros(np.int32),  # type: ignore[arg-type]
        entry_advantage=zeros(np.float32),  # type: ignore[arg-type]
        entry_rollout_logp=zeros(np.float32),  # type: ignore[arg-type]
        entry_weight=zeros(np.float32),  # type: ignore[arg-type]
        entry_temperature=np.ones((rows, entries), np.float32),
        entry_transition=np.full((rows, entries), -1, np.int32),
        entry_first=zeros(np.float32),  # type: ignore[arg-type]
    )


def shapes(config: BatchConfig) -> list[tuple[int, int, int]]:
    """Every (B, T, N) that plan() may produce."""
    return [(b, t, config.entries(t)) for t in config.buckets for b in config.row_counts(t)]


def _length(scored: ScoredTransition) -> int:
    return int(scored.transition.prompt_ids.size + scored.transition.response_ids.size - 1)


def _fits(scored: ScoredTransition, config: BatchConfig) -> bool:
    last = config.buckets[-1]
    return _length(scored) <= last and scored.transition.response_ids.size <= config.entries(last)


def _split(transitions: Sequence[ScoredTransition], parts: int, seed: Sequence[int]) -> list[list[int]]:
    """Numbers of the transitions of each mini-batch, canonical order within; rollouts whole, tasks shuffled."""
    if parts < 1:
        raise ValueError(f"mini_batches={parts}: at least one is needed")
    if parts == 1:
        return [list(range(len(transitions)))]
    tasks = sorted({s.task_id for s in transitions})
    place = dict(zip(tasks, np.random.default_rng(list(seed)).permutation(len(tasks)).tolist(), strict=True))
    rollouts = sorted({(place[s.task_id], s.rollout_id) for s in transitions})
    part_of = {
        rollout: part
        for part, chunk in enumerate(np.array_split(np.arange(len(rollouts)), parts))
        for _, rollout in (rollouts[i] for i in chunk)
    }
    result: list[list[int]] = [[] for _ in range(parts)]
    for number, scored in enumerate(transitions):
        result[part_of[scored.rollout_id]].append(number)
    return [numbers for numbers in result if numbers]


def _micro_batches(
    transitions: Sequence[ScoredTransition], weights: dict[int, float], config: BatchConfig
) -> tuple[list[MicroBatch], int]:
    """Micro-batches of the transitions numbered by `weights`' keys, and the nodes in them."""
    if not weights:
        return [], 0
    laid = lay_out(transitions, list(weights), config.layout)
    buckets = assign_buckets(laid, config)
    result, nodes = [], 0
    for tokens in config.buckets:
        members = [i for i, bucket in enumerate(buckets) if bucket == tokens]
        if not members:
            continue
        entries = config.entries(tokens)
        rows = pack(subset(laid, members), tokens, entries)
        counts = config.row_counts(tokens)
        while rows:
            count = min((c for c in counts if c >= len(rows)), default=counts[0])
            micro = empty_micro_batch(count, tokens, entries)
            for number, row in enumerate(rows[:count]):
                nodes += _fill_row(micro, number, row, transitions, weights)
            rows = rows[count:]
            result.append(micro)
    return result, nodes


def _fill_row(
    micro: MicroBatch, row: int, laid: Laid, transitions: Sequence[ScoredTransition], weights: dict[int, float]
) -> int:
    """Write one row's tries and entries into the padding; returns its nodes."""
    trie = build_trie(laid.sequences, laid.shared.tolist())
    size = trie.tokens.size
    micro.tokens[row, :size] = trie.tokens
    micro.positions[row, :size] = trie.positions
    micro.subtree_end[row, :size] = trie.subtree_end
    start = 0
    for number, path in zip(laid.numbers, trie.paths, strict=True):
        scored = transitions[number]
        t = scored.transition
        place = slice(start, start + t.response_ids.size)
        micro.entry_source[row, place] = path[t.prompt_ids.size - 1 :]
        micro.entry_target[row, place] = t.response_ids
        micro.entry_advantage[row, place] = scored.advantage
        micro.entry_rollout_logp[row, place] = t.rollout_logps
        micro.entry_weight[row, place] = weights[number]
        micro.entry_temperature[row, place] = t.temperature if t.temperature > 0 else 1.0
        micro.entry_transition[row, place] = number
        micro.entry_first[row, start] = 1.0
        start = place.stop
    return int(size)
