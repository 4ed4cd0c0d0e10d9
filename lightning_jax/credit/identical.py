"""Every transition is credited with the whole reward, as Agent Lightning assigns it; intermediate rewards are ignored.

w_k = 1 whatever the normalisation; c_k = R. The rewards of a trajectory add up to K R, so pooled baselines favour long
trajectories; on the advantage it equals `uniform`.
"""

from __future__ import annotations

import numpy as np

from lightning_jax.credit.allocation import Float64Array
from lightning_jax.credit.config import CreditConfig


def weights(count: int, config: CreditConfig, progress: float) -> Float64Array:
    """Ones f64[K]."""
    return np.ones(count)


def credits(weights: Float64Array, rewards: Float64Array, total: float, config: CreditConfig) -> Float64Array:
    """c_k = R, f64[K]."""
    return np.full(weights.shape, float(total))
