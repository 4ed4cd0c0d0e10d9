"""What the allocating strategies share: normalising raw weights, and the reward a weight gives its transition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_jax.credit.config import CreditConfig, Normalize

Float64Array = NDArray[np.float64]


def normalise(raw: Float64Array, how: Normalize) -> Float64Array:
    """Weights f64[K] from raw ones f64[K] > 0: as they are, with mean 1, or with sum 1."""
    if how == "none" or raw.size == 0:
        return raw
    share: Float64Array = raw / raw.sum()
    return share * raw.size if how == "mean" else share


def distance(count: int, from_end: bool) -> Float64Array:
    """f64[K]: each transition's distance to the end (or start) that weighs most."""
    steps = np.arange(count, dtype=np.float64)
    return steps[::-1].copy() if from_end else steps


def allocate(weights: Float64Array, rewards: Float64Array, total: float, config: CreditConfig) -> Float64Array:
    """c_k = w_k R + r_k, f64[K]: an intermediate reward stays with the transition that earned it."""
    return weights * total + rewards
