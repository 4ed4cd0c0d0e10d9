"""Correcting for the sampler: μ, which drew the tokens, is not quite π_old (another program, dtype or older weights).

The weights act on the loss and leave its denominators alone; rejection changes what is counted and happens before
weights are handed out (`preparation.py`). Unbatched: functions take the N loss entries of one row and are vmapped.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from lightning_jax.learner.losses import LOG_RATIO_LIMIT, log_ratio
from lightning_jax.learner.masked import group_sum


class Correction(Protocol):
    """What the weight is made from (AlgoConfig has it)."""

    @property
    def tis(self) -> float | None: ...
    @property
    def tis_level(self) -> str: ...
    @property
    def icepop(self) -> tuple[float, float] | None: ...


def importance_weight(
    old_logp: jax.Array, rollout_logp: jax.Array, mask: jax.Array, group: jax.Array, config: Correction
) -> tuple[jax.Array, jax.Array]:
    """Weight f32[N] without gradient, and 1 where it is not ρ = π_old/μ itself; ones and zeros with no correction.

    Truncated: min(ρ, C) (Ionides 2008; Yao et al. 2025). IcePop: ρ within a band, else 0 (Ling team 2025). At level
    sequence ρ is the product over a transition's tokens, its logarithm clipped to ±20.
    """
    if config.tis_level == "sequence":
        total = group_sum(old_logp - rollout_logp, mask, group)
        rho = jnp.exp(jnp.clip(total, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    else:
        rho = jnp.exp(log_ratio(old_logp, rollout_logp))
    if config.icepop is not None:
        inside = (rho >= config.icepop[0]) & (rho <= config.icepop[1])
        weight, changed = jnp.where(inside, rho, 0.0), ~inside
    elif config.tis is not None:
        weight, changed = jnp.minimum(rho, config.tis), rho > config.tis
    else:
        weight, changed = jnp.ones_like(rho), jnp.zeros(rho.shape, bool)
    return jax.lax.stop_gradient(weight), changed.astype(jnp.float32)
