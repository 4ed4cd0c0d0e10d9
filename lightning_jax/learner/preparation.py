"""What an update has to know before its first optimiser step: old and reference log-probs, values, advantages.

All of it comes from one program at the shapes that the loss will have, so that ratios are exactly 1 where nothing
moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from lightning_jax.batch import MicroBatch, Plan, by_transition, per_token, per_transition
from lightning_jax.batch.weights import token_weights
from lightning_jax.learner.advantages import Evaluation, TokenAdvantages, token_advantages
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.objective import Batch, extra_arrays
from lightning_jax.learner.placement import fetch, put
from lightning_jax.learner.state import TrainState, reference_of
from lightning_jax.learner.step import Programs


@dataclass(frozen=True)
class Prepared:
    """Micro-batches on the devices, per mini-batch, with all that the objective reads."""

    mini_batches: list[list[Batch]]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Preparer:
    """Turns a plan into batches for the devices."""

    programs: Programs
    algo: AlgoConfig
    rows: NamedSharding

    def batch(self, micro: MicroBatch, extra: Mapping[str, jax.Array] | None = None) -> Batch:
        """A micro-batch on the devices; `extra` adds arrays or replaces the plan's."""
        extra = extra or {}
        placed = {f.name: put(getattr(micro, f.name), self.rows) for f in fields(micro) if f.name not in extra}
        return {**placed, **extra}

    def blank(self, micro: MicroBatch) -> Batch:
        """A batch with every array that the objective reads, to compile with."""
        empty = {name: put(np.zeros_like(micro.entry_weight), self.rows) for name in extra_arrays(self.algo)}
        return self.batch(micro, empty)

    def prepare(self, state: TrainState, work: Plan, kl_coef: float) -> Prepared:
        """Evaluate the batch before the first step."""
        algo, micros = self.algo, work.micro_batches
        bare = [self.batch(micro) for micro in micros]
        extras: list[Batch] = [{} for _ in micros]
        for batch, extra in zip(bare, extras, strict=True):
            if algo.evaluates:
                out = self.programs.evaluate(state["params"], batch)
                extra["old_logp"] = out["logp"]
                if algo.has_critic:
                    extra["old_value"] = out["value"]
            if algo.reference:
                extra["ref_logp"] = self.programs.evaluate(reference_of(state), batch)["logp"]
        metrics: dict[str, float] = {}
        if algo.reject is not None or algo.rewrites_advantages:
            metrics = self._rewrite(work, extras, kl_coef)
        if algo.on_policy:
            for extra in extras:  # the policy itself is π_old: its own log-probs serve, without a gradient
                extra.pop("old_logp", None)
        batches = iter({**batch, **extra} for batch, extra in zip(bare, extras, strict=True))
        return Prepared([[next(batches) for _ in mini] for mini in work.mini_batches], metrics)

    def _rewrite(self, work: Plan, extras: list[Batch], kl_coef: float) -> dict[str, float]:
        """Rejection, then advantages and value targets, into `extras`."""
        algo, micros, count = self.algo, work.micro_batches, len(work.transitions)
        if not micros:
            return {}

        def read(name: str) -> list[NDArray[np.float64]] | None:
            if name not in extras[0]:
                return None
            return by_transition(micros, [fetch(extra[name]) for extra in extras], count)

        logp = read("old_logp") or by_transition(micros, [m.entry_rollout_logp for m in micros], count)
        trained = np.array([x.size > 0 for x in logp], np.bool_)
        metrics: dict[str, float] = {}
        weights = [micro.entry_weight for micro in micros]
        if algo.reject is not None:
            strays = rejected(work, logp, algo.reject)
            metrics["learner/rejected_fraction"] = float(strays.sum()) / max(1, int(trained.sum()))
            trained &= ~strays
            weights = _weights_without(work, strays, algo)
            for extra, weight in zip(extras, weights, strict=True):
                extra["entry_weight"] = put(weight, self.rows)
        if algo.rewrites_advantages:
            evaluation = Evaluation(logp, read("ref_logp"), read("old_value"))
            found = token_advantages(work.transitions, evaluation, trained, algo, kl_coef, work.left_out)
            metrics |= found.figures
            self._place(work, extras, found, trained)
        return metrics

    def _place(self, work: Plan, extras: list[Batch], found: TokenAdvantages, trained: NDArray[np.bool_]) -> None:
        every = iter(extras)
        for mini in work.mini_batches:
            places = [self._value_places(micro, trained) for micro in mini]
            count = max(1.0, float(sum(place.sum() for place in places)))
            for micro, place in zip(mini, places, strict=True):
                extra = next(every)
                extra["entry_advantage"] = put(per_token(micro, found.advantages), self.rows)
                if found.targets is not None:
                    extra["value_target"] = put(per_token(micro, found.targets), self.rows)
                    extra["value_weight"] = put(place / np.float32(count), self.rows)

    def _value_places(self, micro: MicroBatch, trained: NDArray[np.bool_]) -> NDArray[np.float32]:
        """1 where V is trained: at a call's first entry with turn-level GAE, at all of them with token-level GAE."""
        place: NDArray[np.float32] = per_transition(micro, trained.astype(np.float64))
        return place * micro.entry_first if self.algo.advantage == "turn_gae" else place


def rejected(work: Plan, logp: list[NDArray[np.float64]], band: tuple[float, float]) -> NDArray[np.bool_]:
    """bool[K]: laid-out transitions whose geometric mean of π_old/μ lies outside the band."""
    result = np.zeros(len(logp), np.bool_)
    for k, (scored, values) in enumerate(zip(work.transitions, logp, strict=True)):
        if values.size:
            mean = float(np.exp(np.mean(values - scored.transition.rollout_logps)))
            result[k] = not band[0] <= mean <= band[1]
    return result


def _weights_without(work: Plan, rejected: NDArray[np.bool_], algo: AlgoConfig) -> list[NDArray[Any]]:
    """entry_weight f32[B,N] of every micro-batch with the rejected left out of the denominators too."""
    result: list[NDArray[Any]] = []
    for mini in work.mini_batches:
        numbers = np.unique(np.concatenate([m.entry_transition.reshape(-1) for m in mini]))
        numbers = numbers[numbers >= 0]
        members = [
            replace(work.transitions[k], loss_weight=0.0) if rejected[k] else work.transitions[k] for k in numbers
        ]
        weights = np.zeros(len(work.transitions))
        weights[numbers] = token_weights(members, algo.aggregation, constant=algo.constant)
        result += [per_transition(micro, weights) for micro in mini]
    return result
