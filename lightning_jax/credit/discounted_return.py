"""The discounted return: c_k = r_k + gamma c_{k+1}, with the final reward R added to the last transition's r.

Unlike the allocating strategies an intermediate reward flows back to the steps before it. Without intermediate rewards
it is `exponential` from the end: w_k = gamma^d. A normalisation scales the whole recursion as it scales the weights.
"""

from __future__ import annotations

from lightning_jax.credit.allocation import Float64Array, distance, normalise
from lightning_jax.credit.config import CreditConfig


def weights(count: int, config: CreditConfig, progress: float) -> Float64Array:
    """Weights f64[K] = normalised gamma^d."""
    return normalise(config.gamma ** distance(count, from_end=True), config.normalize)


def credits(weights: Float64Array, rewards: Float64Array, total: float, config: CreditConfig) -> Float64Array:
    """The returns f64[K], scaled by the last weight (1 where nothing is normalised)."""
    if not weights.size:
        return weights
    returns = rewards.copy()
    returns[-1] += total
    for k in range(len(returns) - 2, -1, -1):
        returns[k] += config.gamma * returns[k + 1]
    returns *= weights[-1]
    return returns
