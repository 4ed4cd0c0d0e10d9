"""Metrics of an update from the sums that its programs return. Host code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_jax.batch import Plan
from lightning_jax.types import ScoredTransition

Totals = dict[str, float]  # "sum/name", "max/name" and per-step figures of a whole update


def add_totals(totals: Totals, of_batches: Sequence[Mapping[str, Any]], norms: Mapping[str, Any]) -> None:
    """Add one optimiser step's figures to an update's."""
    for out in of_batches:
        for name, value in out["sums"].items():
            totals[f"sum/{name}"] = totals.get(f"sum/{name}", 0.0) + float(value)
        for name, value in out["maxima"].items():
            totals[f"max/{name}"] = max(totals.get(f"max/{name}", -math.inf), float(value))
    norm = float(norms["grad_norm"])
    totals["steps"] = totals.get("steps", 0.0) + 1.0
    totals["skipped"] = totals.get("skipped", 0.0) + float(norms["skipped"])
    totals["grad_norm"] = totals.get("grad_norm", 0.0) + norm
    totals["grad_norm_max"] = max(totals.get("grad_norm_max", 0.0), norm)
    totals["update_norm"] = totals.get("update_norm", 0.0) + float(norms["update_norm"])


def plan_metrics(work: Plan, transitions: Sequence[ScoredTransition]) -> dict[str, float]:
    """What the layout did."""
    stats = work.stats
    zero = sum(s.advantage == 0 for s in transitions)
    return {
        "batch/rollouts_count": float(stats.rollouts),
        "batch/transitions_count": float(stats.transitions),
        "batch/skipped_transitions_count": float(stats.skipped),
        "batch/dropped_transitions_count": float(stats.dropped),
        "batch/empty_transitions_count": float(stats.empty),
        "batch/zero_advantage_fraction": zero / max(1, len(transitions)),
        "batch/trained_tokens": float(stats.tokens_trained),
        "batch/computed_tokens": float(stats.tokens_computed),
        "batch/sharing_factor": stats.tokens_separate / max(1, stats.tokens_laid),
        "batch/fill_fraction": stats.tokens_laid / max(1, stats.tokens_computed),
        "batch/micro_batches_count": float(stats.micro_batches),
    }


def step_metrics(totals: Totals) -> dict[str, float]:
    """What every kind of update reports; zeros where there was nothing to train on."""
    steps, tokens = max(1.0, totals.get("steps", 0.0)), max(1.0, totals.get("sum/tokens", 0.0))
    return {
        "learner/loss": totals.get("sum/loss", 0.0) / steps,
        "learner/entropy_nat": totals.get("sum/entropy", 0.0) / tokens,
        "learner/grad_norm": totals.get("grad_norm", 0.0) / steps,
        "learner/grad_norm_max": totals.get("grad_norm_max", 0.0),
        "learner/update_norm": totals.get("update_norm", 0.0) / steps,
        "learner/steps_count": totals.get("steps", 0.0),
        "learner/skipped_steps_count": totals.get("skipped", 0.0),
    }


def supervised_metrics(totals: Totals) -> dict[str, float]:
    """Metrics of supervised()."""
    tokens = max(1.0, totals.get("sum/tokens", 0.0))
    return step_metrics(totals) | {"learner/logp_nat": totals.get("sum/logp", 0.0) / tokens}


def policy_metrics(totals: Totals) -> dict[str, float]:
    """Metrics of update(): means are per trained token, over all epochs."""
    steps, tokens = max(1.0, totals.get("steps", 0.0)), max(1.0, totals.get("sum/tokens", 0.0))

    def mean(name: str) -> float:
        return totals.get(f"sum/{name}", 0.0) / tokens

    square = totals.get("sum/rho_squared", 0.0)
    metrics = step_metrics(totals) | {
        "learner/policy_loss": totals.get("sum/policy_loss", 0.0) / steps,
        "learner/clip_fraction": mean("clipped"),
        "learner/dual_clip_fraction": mean("dual_clipped"),
        "learner/ratio_mean": mean("ratio"),
        "learner/ratio_max": totals.get("max/ratio", 0.0),
        "learner/old_kl_nat": mean("old_kl"),
        "learner/gap_nat": mean("gap"),
        "learner/gap_max_nat": totals.get("max/gap", 0.0),
        "learner/rho_mean": mean("rho"),
        "learner/rho_max": totals.get("max/rho", 0.0),
        "learner/rho_ess_fraction": totals["sum/rho"] ** 2 / (tokens * square) if square else 0.0,
        "learner/mismatch_cut_fraction": mean("mismatch_cut"),
    }
    if "sum/kl" in totals:
        metrics |= {"learner/kl_nat": mean("kl"), "learner/kl_max_nat": totals["max/kl"]}
    if "sum/value_loss" in totals:
        metrics["learner/value_loss"] = totals["sum/value_loss"] / steps
    return metrics
