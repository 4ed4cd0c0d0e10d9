"""The maths of the policy losses, unbatched: every function takes the N loss entries of one row and is vmapped.

A loss is per token and unreduced; the caller multiplies by w_t and sums. All log ratios are clipped to [-20, 20], so a
token the policy has left behind gives a large finite number, not an overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from lightning_jax.learner.masked import group_mean

LOG_RATIO_LIMIT = 20.0
GSPO_LOG_RATIO_LIMIT = 10.0


class Clip(Protocol):
    """The clip range (AlgoConfig has it)."""

    @property
    def eps_low(self) -> float: ...
    @property
    def eps_high(self) -> float: ...
    @property
    def dual_clip(self) -> float | None: ...


class PolicyLoss(NamedTuple):
    """Per token f32[N]."""

    loss: jax.Array
    ratio: jax.Array  # π_θ / π_old
    clipped: jax.Array  # 1 where the clip is active
    dual_clipped: jax.Array  # 1 where the dual clip is active


def log_ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """a - b clipped to ±20."""
    return jnp.clip(a - b, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def ppo(
    logp: jax.Array, old_logp: jax.Array, advantage: jax.Array, mask: jax.Array, group: jax.Array, clip: Clip
) -> PolicyLoss:
    """L = max(-A·r, -A·clip(r, 1-ε_low, 1+ε_high)), and min(-c·A, L) for A < 0.

    Clipped surrogate: Schulman et al. 2017 (arXiv 1707.06347) eq. 7; dual clip c: Ye et al. 2020 (1912.09729) eq. 5.
    """
    ratio = jnp.exp(log_ratio(logp, old_logp))
    free = -advantage * ratio
    bound = -advantage * jnp.clip(ratio, 1 - clip.eps_low, 1 + clip.eps_high)
    loss = jnp.maximum(free, bound)
    clipped = (bound > free).astype(jnp.float32)
    dual = jnp.zeros_like(clipped)
    if clip.dual_clip is not None:
        ceiling = -advantage * clip.dual_clip
        dual = ((loss > ceiling) & (advantage < 0)).astype(jnp.float32)
        loss = jnp.where(advantage < 0, jnp.minimum(ceiling, loss), loss)
    return PolicyLoss(loss, ratio, clipped, dual)


def gspo(
    logp: jax.Array, old_logp: jax.Array, advantage: jax.Array, mask: jax.Array, group: jax.Array, clip: Clip
) -> PolicyLoss:
    """PPO's clip on the sequence ratio s = exp(mean_t log r_t), a sequence being one transition (group).

    GSPO-token of Zheng et al. 2025 (arXiv 2507.18071) eq. 13: value s, gradient s·∇logp.
    """
    mean = group_mean(jax.lax.stop_gradient(log_ratio(logp, old_logp)), mask, group)
    ratio = jnp.exp(jnp.minimum(mean + logp - jax.lax.stop_gradient(logp), GSPO_LOG_RATIO_LIMIT))
    free = -advantage * ratio
    bound = -advantage * jnp.clip(ratio, 1 - clip.eps_low, 1 + clip.eps_high)
    clipped = (bound > free).astype(jnp.float32)
    return PolicyLoss(jnp.maximum(free, bound), ratio, clipped, jnp.zeros_like(clipped))


def cispo(
    logp: jax.Array, old_logp: jax.Array, advantage: jax.Array, mask: jax.Array, group: jax.Array, clip: Clip
) -> PolicyLoss:
    """L = -sg(clip(r, 1-ε_low, 1+ε_high))·A·logp: clips the weight, never the gradient.

    MiniMax-M1 (arXiv 2506.13585) eq. 4.
    """
    ratio = jnp.exp(log_ratio(logp, old_logp))
    weight = jnp.clip(ratio, 1 - clip.eps_low, 1 + clip.eps_high)
    clipped = (weight != ratio).astype(jnp.float32)
    return PolicyLoss(-jax.lax.stop_gradient(weight) * advantage * logp, ratio, clipped, jnp.zeros_like(clipped))


PolicyLossFunction = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, Clip], PolicyLoss]
POLICY_LOSSES: dict[str, PolicyLossFunction] = {"ppo": ppo, "gspo": gspo, "cispo": cispo}


def _k1(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    return logp - ref_logp


def _k2(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    return 0.5 * jnp.square(logp - ref_logp)


def _k3(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    d = jnp.clip(ref_logp - logp, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return jnp.exp(d) - d - 1


KL_ESTIMATORS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {"k1": _k1, "k2": _k2, "k3": _k3}
"""Estimators of KL(π_θ ‖ π_ref) from one sample, d = logp - ref_logp: d, d²/2, e^{-d} + d - 1 (Schulman 2020)."""


def kl_term(logp: jax.Array, ref_logp: jax.Array, ratio: jax.Array, estimator: str, bias_correction: bool) -> jax.Array:
    """KL per token, d = logp - ref_logp and r = π_θ/π_old.

    With bias_correction the gradient is the unbiased reverse-KL gradient r·d, off-policy too: r·k3 has it exactly,
    r·k1 up to the noise r·∇logp of mean 0, and k2, whose own gradient is d already, needs r without its gradient.
    """
    value = KL_ESTIMATORS[estimator](logp, ref_logp)
    if not bias_correction:
        return value
    return (jax.lax.stop_gradient(ratio) if estimator == "k2" else ratio) * value
