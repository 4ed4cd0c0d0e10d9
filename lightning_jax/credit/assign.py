"""Assigns one trajectory's reward to its transitions.

Invariant: a transition that is not selected (by `component`) or whose agent weighs 0 has loss weight 0: it stays in the
context of the others and is not trained. Nothing here looks at another trajectory; baselines are `baseline`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_jax.credit.allocation import Float64Array
from lightning_jax.credit.config import CreditConfig
from lightning_jax.credit.table import STRATEGIES
from lightning_jax.types import Trajectory


@dataclass(frozen=True, slots=True)
class Credits:
    """What each of a trajectory's K transitions gets; all arrays f64[K] in the trajectory's order."""

    weights: Float64Array  # w_k; 0 where unselected
    credits: Float64Array  # c_k, the credited reward after the floor; 0 where unselected
    agent_factors: Float64Array  # a_k, the agent's factor on the advantage; 0 where unselected
    loss_weights: Float64Array  # 1, or 0: context only
    clipped: float  # share of the selected transitions whose c_k the floor `min_reward` raised


def assign(trajectory: Trajectory, score_total: float, config: CreditConfig, *, progress: float = 0.0) -> Credits:
    """Split `score_total` over the trajectory's transitions as `config` says.

    `progress` in [0, 1] is the share of the training done, for `dynamic.over: training`. Raises ValueError outside it.
    """
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"progress must be in [0, 1], got {progress}; pass step / total_steps")
    agents = [transition.agent for transition in trajectory.transitions]
    selected = _selected(trajectory, config.component)
    counted = selected if config.component_order == "filter_then_weight" else np.ones_like(selected)
    strategy = STRATEGIES[config.strategy]
    raw_weights = strategy.weights(int(counted.sum()), config, progress)
    rewards = _rewards(trajectory, counted)
    raw_credits = strategy.credits(raw_weights, rewards, float(score_total), config)
    weights = _spread(raw_weights, counted) * selected
    credits, clipped = _floored(_spread(raw_credits, counted), selected, config.min_reward)
    factors = _agent_factors(agents, selected, config)
    return Credits(
        weights=weights,
        credits=credits,
        agent_factors=factors,
        loss_weights=(selected & (factors != 0.0)).astype(np.float64),
        clipped=clipped,
    )


def _selected(trajectory: Trajectory, component: str | None) -> NDArray[np.bool_]:
    """Which transitions the pattern matches, by their agent's name or by agent/node."""
    if component is None:
        return np.ones(len(trajectory.transitions), dtype=np.bool_)
    names = [(step.agent, f"{step.agent}/{step.node}" if step.node else step.agent) for step in trajectory.transitions]
    return np.array([any(re.fullmatch(component, name) for name in pair) for pair in names], dtype=np.bool_)


def _rewards(trajectory: Trajectory, counted: NDArray[np.bool_]) -> Float64Array:
    """Intermediate rewards of the counted transitions; an uncounted one's goes to the counted transition before it.

    What came before the first counted transition cannot be its doing and is dropped.
    """
    rewards = np.zeros(int(counted.sum()))
    position = -1
    for transition, counts in zip(trajectory.transitions, counted, strict=True):
        position += int(counts)
        if position >= 0:
            rewards[position] += transition.reward
    return rewards


def _spread(values: Float64Array, where: NDArray[np.bool_]) -> Float64Array:
    """`values` at the positions `where`, 0 elsewhere."""
    spread = np.zeros(where.shape)
    spread[where] = values
    return spread


def _floored(
    credits: Float64Array, selected: NDArray[np.bool_], min_reward: float | None
) -> tuple[Float64Array, float]:
    """Credits with the floor, unselected ones 0, and the share of the selected that the floor raised."""
    if min_reward is None or not selected.any():
        return credits * selected, 0.0
    clipped = float((credits[selected] < min_reward).mean())
    return np.where(selected, np.maximum(credits, min_reward), 0.0), clipped


def _agent_factors(agents: list[str], selected: NDArray[np.bool_], config: CreditConfig) -> Float64Array:
    factors = np.array([_agent_factor(agent, config) for agent in agents], dtype=np.float64) * selected
    mean = float(factors[selected].mean()) if selected.any() else 0.0
    return factors / mean if config.rescale_agent_weight and mean > 0.0 else factors


def _agent_factor(agent: str, config: CreditConfig) -> float:
    """The factor given to this very name, else to the first pattern that matches all of it, else 1."""
    if agent in config.agent_weight:
        return float(config.agent_weight[agent])
    for pattern, factor in config.agent_weight.items():
        if re.fullmatch(pattern, agent):
            return float(factor)
    return 1.0
