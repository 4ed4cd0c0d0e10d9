"""The advantage of single steps, from the rewards that came on the way.

With `apply_to: advantage` a rollout's advantage knows only its total. A second term, as in GiGPO and MT-GRPO, adds what
a step's own reward says: A_{i,k} = a_k (A_i w_k + step_weight A^step_{i,k}). A^step is the discounted intermediate
reward, without the final one, against the steps of the same task and agent: agents differ in the scale of their
rewards and in how often they are asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_jax.credit import discounted_return
from lightning_jax.credit.allocation import Float64Array
from lightning_jax.credit.assign import Credits
from lightning_jax.credit.baseline import BaselineConfig, group_advantages
from lightning_jax.credit.config import CreditConfig
from lightning_jax.types import Score, Trajectory


def step_advantages(
    trajectories: Sequence[Trajectory],
    scores: Sequence[Score],
    credits: Sequence[Credits],
    credit: CreditConfig,
    baseline: BaselineConfig,
) -> list[Float64Array]:
    """A^step of every transition, f64[K] per trajectory; 0 where one is not trained or its score is invalid."""
    lengths = [len(one.transitions) for one in trajectories]
    if not sum(lengths):
        return [np.zeros(0) for _ in lengths]
    returns = [_returns(one, credit) for one in trajectories]
    trained = [given.loss_weights * score.valid > 0 for given, score in zip(credits, scores, strict=True)]
    result = group_advantages(
        np.concatenate(returns),
        [f"{one.task_id}\0{transition.agent}" for one in trajectories for transition in one.transitions],
        baseline,
        valid=np.concatenate(trained),
    )
    return np.split(result.advantages, np.cumsum(lengths)[:-1])


def _returns(trajectory: Trajectory, credit: CreditConfig) -> Float64Array:
    """s_k = r_k + gamma s_{k+1}, f64[K], the final reward left out."""
    rewards = np.array([transition.reward for transition in trajectory.transitions], dtype=np.float64)
    return discounted_return.credits(np.ones_like(rewards), rewards, 0.0, credit)
