"""All transitions of a trajectory weigh the same: u_k = 1, then normalised."""

from __future__ import annotations

import numpy as np

from lightning_jax.credit.allocation import Float64Array, allocate, normalise
from lightning_jax.credit.config import CreditConfig


def weights(count: int, config: CreditConfig, progress: float) -> Float64Array:
    """Weights f64[K]: 1 (none, mean) or 1/K (sum)."""
    return normalise(np.ones(count), config.normalize)


credits = allocate
