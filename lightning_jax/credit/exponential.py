"""Weights fall geometrically with the distance d to the decisive end: u_k = gamma^d, then normalised.

A prior ("late steps decide"; `from_start`: early ones), not a free gain. With `normalize: none` the weights add up to
less the smaller gamma is, so a sweep of gamma also changes the step size; `mean` keeps it.
"""

from __future__ import annotations

from lightning_jax.credit.allocation import Float64Array, allocate, distance, normalise
from lightning_jax.credit.config import CreditConfig


def weights(count: int, config: CreditConfig, progress: float) -> Float64Array:
    """Weights f64[K]."""
    return normalise(config.gamma ** distance(count, config.direction == "from_end"), config.normalize)


credits = allocate
