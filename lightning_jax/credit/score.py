"""From scored trajectories to transitions the learner can use: baseline over rollouts, then credit within each.

    A_{i,k} = a_agent(k) * (A_i * w_k [+ step_weight * A^step_{i,k}, see `steps`])      (apply_to: advantage)

The baseline compares whole rollouts of one task, so that how many calls a rollout made does not move it, and only then
the weights spread a rollout's advantage: every step of a better-than-average rollout is encouraged. With uniform
weights this is LightningRL with rollout-level advantages.

`apply_to: reward` hands out credited rewards c_k instead. Without a baseline (None, or mean_level: none) they are the
advantages of REINFORCE, or what a critic's are made of: the learner makes these itself, and multiplies by a_agent(k)
last. With a group baseline they are compared within a task's pool of transitions, an ablation that must be asked for
by `allow_pooled`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_jax.credit.allocation import Float64Array
from lightning_jax.credit.assign import Credits, assign
from lightning_jax.credit.baseline import Baseline, BaselineConfig, group_advantages, summary
from lightning_jax.credit.config import CreditConfig
from lightning_jax.credit.steps import step_advantages
from lightning_jax.types import Score, ScoredTransition, Trajectory

_NO_BASELINE = BaselineConfig(mean_level="none", std_level="none")


def score_transitions(
    trajectories: Sequence[Trajectory],
    scores: Sequence[Score],
    credit: CreditConfig,
    baseline: BaselineConfig | None,
    *,
    progress: float = 0.0,
) -> tuple[list[ScoredTransition], dict[str, float]]:
    """Score all transitions of all trajectories, in order, unselected ones included (loss weight 0).

    `scores[i]` belongs to `trajectories[i]`. Pass every rollout of a group, before any is dropped. Trajectories with an
    invalid score enter no statistic; their transitions have advantage 0 and loss weight 0. `progress`: see `assign`.
    Returns the transitions and figures for logging. Raises ValueError for lengths that differ and for credited rewards
    in a pooled baseline.
    """
    if len(trajectories) != len(scores):
        raise ValueError(f"{len(trajectories)} trajectories but {len(scores)} scores; pass one score per trajectory")
    config = baseline or _NO_BASELINE
    credit.check_placement(pooled=config.pooled)
    pairs = zip(trajectories, scores, strict=True)
    credits = [assign(one, score.total, credit, progress=progress) for one, score in pairs]
    if credit.apply_to == "advantage":
        result, advantages = _weighted_advantages(trajectories, scores, credits, config)
        if credit.step_weight:
            steps = step_advantages(trajectories, scores, credits, credit, config)
            weighted = [credit.step_weight * s * given.agent_factors for s, given in zip(steps, credits, strict=True)]
            advantages = [a + s for a, s in zip(advantages, weighted, strict=True)]
    else:
        result, advantages = _advantages_of_credits(trajectories, scores, credits, config)
    scored = [
        transition
        for one, score, given, values in zip(trajectories, scores, credits, advantages, strict=True)
        for transition in _scored(one, score.valid, given, values, credit)
    ]
    figures = summary(result) | _reward_figures(scores) | _credit_figures(trajectories, scores, credits, credit)
    return scored, figures


def _weighted_advantages(
    trajectories: Sequence[Trajectory], scores: Sequence[Score], credits: Sequence[Credits], config: BaselineConfig
) -> tuple[Baseline, list[Float64Array]]:
    """A_i * w_k * a_k per trajectory."""
    result = group_advantages(
        [score.total for score in scores],
        [one.task_id for one in trajectories],
        config,
        valid=[score.valid for score in scores],
        outcomes=[score.outcome for score in scores],
    )
    pairs = zip(result.advantages, credits, strict=True)
    return result, [advantage * given.weights * given.agent_factors for advantage, given in pairs]


def _advantages_of_credits(
    trajectories: Sequence[Trajectory], scores: Sequence[Score], credits: Sequence[Credits], config: BaselineConfig
) -> tuple[Baseline, list[Float64Array]]:
    """Baselined c_k * a_k per trajectory; the transitions of a task are one pool."""
    lengths = [len(one.transitions) for one in trajectories]
    trained = np.concatenate([given.loss_weights > 0 for given in credits]) if credits else np.zeros(0, np.bool_)
    result = group_advantages(
        np.concatenate([given.credits for given in credits]) if credits else np.zeros(0),
        [one.task_id for one in trajectories for _ in one.transitions],
        config,
        valid=trained & np.repeat([score.valid for score in scores], lengths).astype(np.bool_),
        outcomes=np.repeat([score.outcome for score in scores], lengths),
    )
    pieces = np.split(result.advantages, np.cumsum(lengths)[:-1]) if lengths else []
    return result, [piece * given.agent_factors for piece, given in zip(pieces, credits, strict=True)]


def _scored(
    trajectory: Trajectory, valid: bool, given: Credits, advantages: Float64Array, credit: CreditConfig
) -> list[ScoredTransition]:
    values = given.weights if credit.apply_to == "advantage" else given.credits
    return [
        ScoredTransition(
            transition=transition,
            task_id=trajectory.task_id,
            rollout_id=trajectory.rollout_id,
            advantage=float(advantages[k]) if valid else 0.0,
            credit=float(values[k]),
            loss_weight=float(given.loss_weights[k]) if valid else 0.0,
            agent_factor=float(given.agent_factors[k]),
        )
        for k, transition in enumerate(trajectory.transitions)
    ]


def _reward_figures(scores: Sequence[Score]) -> dict[str, float]:
    """Means over the valid scores, each component beside the total."""
    valid = [score for score in scores if score.valid]
    figures = {"reward/invalid_fraction": (len(scores) - len(valid)) / max(1, len(scores))}
    if not valid:
        return figures
    totals = np.array([score.total for score in valid])
    figures |= {
        "reward/mean": float(totals.mean()),
        "reward/std": float(totals.std()),
        "reward/outcome_mean": float(np.mean([score.outcome for score in valid])),
    }
    for name in dict.fromkeys(name for score in valid for name in score.components):
        values = [score.components[name] for score in valid if name in score.components]
        figures[f"reward/{name}_mean"] = float(np.mean(values))
    return figures


def _credit_figures(
    trajectories: Sequence[Trajectory], scores: Sequence[Score], credits: Sequence[Credits], credit: CreditConfig
) -> dict[str, float]:
    kept = [(one, given) for one, score, given in zip(trajectories, scores, credits, strict=True) if score.valid]
    count = max(1, len(kept))
    transitions = sum(len(one.transitions) for one, _ in kept)
    trained = sum(float(given.loss_weights.sum()) for _, given in kept)
    stepwise = sum(any(t.reward != 0.0 for t in one.transitions) for one, _ in kept)
    return {
        "credit/transitions": float(transitions),
        "credit/context_only": 1.0 - trained / max(1, transitions) if transitions else 0.0,
        "credit/clipped": sum(given.clipped for _, given in kept) / count,
        # Share of trajectories with intermediate rewards that the setting ignores: neither use is on.
        "credit/ignored_step_rewards": 0.0 if credit.apply_to == "reward" or credit.step_weight else stepwise / count,
    }
