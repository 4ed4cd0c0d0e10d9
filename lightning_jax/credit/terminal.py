"""The whole reward at the last transition: where the environment gave it, as plain PPO sees an episode.

w_k is 1 at the last selected transition and 0 before, whatever the normalisation; intermediate rewards stay where they
came. The transitions before learn of the end only by a critic's GAE: without one they have nothing to learn from.
"""

from __future__ import annotations

import numpy as np

from lightning_jax.credit.allocation import Float64Array, allocate
from lightning_jax.credit.config import CreditConfig


def weights(count: int, config: CreditConfig, progress: float) -> Float64Array:
    """Weights f64[K]: 0, ..., 0, 1."""
    last = np.zeros(count)
    last[-1:] = 1.0
    return last


credits = allocate
