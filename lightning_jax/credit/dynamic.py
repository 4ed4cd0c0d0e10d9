"""Exponential weights whose gamma falls in long trajectories, so that early steps keep some credit.

K <= `longer_than` (10) is `exponential` with the fixed gamma; there is a jump at the next length. Beyond, with
gamma_k = start + (end - start) k/(K-1), that is .9 at the first step and .7 at the last:

* power (default): u_k = gamma_k^d with d the distance to the end. Not monotone: for K = 12 the smallest weight is the
  fourth. The first step gets .314 of the last one's weight, with a fixed .85 only .167.
* product: u_k is the product of gamma_j over the steps from k up to the last but one. Gives early steps less (.095).

`over: training` lowers one gamma for all steps along the run instead: gamma = start + (end - start) * progress.
"""

from __future__ import annotations

import numpy as np

from lightning_jax.credit import exponential
from lightning_jax.credit.allocation import Float64Array, allocate, distance, normalise
from lightning_jax.credit.config import CreditConfig


def weights(count: int, config: CreditConfig, progress: float) -> Float64Array:
    """Weights f64[K]. `progress` in [0, 1]: the share of the training done, used by `over: training` only."""
    dynamic = config.dynamic
    if count <= dynamic.longer_than or count < 2:
        return exponential.weights(count, config, progress)
    if dynamic.over == "training":
        gammas = np.full(count, dynamic.start + (dynamic.end - dynamic.start) * progress)
    else:
        gammas = np.linspace(dynamic.start, dynamic.end, count)
    from_end = config.direction == "from_end"
    if dynamic.form == "power":
        return normalise(gammas ** distance(count, from_end), config.normalize)
    inner = gammas[:-1]
    raw = np.append(np.cumprod(inner[::-1])[::-1], 1.0) if from_end else np.append(1.0, np.cumprod(inner))
    return normalise(raw, config.normalize)


credits = allocate
