"""Advantages from rewards and values over one chain of steps, on the host in float64. A step is a call or a token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def gae(rewards: F64, discounts: F64, values: F64, lam: float) -> F64:
    """A_k = δ_k + d_k·λ·A_{k+1}, δ_k = r_k + d_k·V_{k+1} - V_k (Schulman et al. 2016, arXiv 1506.02438, eq. 11-16).

    rewards, discounts f64[K]; values f64[K+1], the last one the bootstrap. discounts[k] = 0 ends an episode.
    """
    if values.size != rewards.size + 1 or discounts.size != rewards.size:
        raise ValueError(
            f"{rewards.size} rewards need as many discounts and one more value, got {discounts.size} and {values.size}"
        )
    result = np.zeros_like(rewards)
    following = 0.0
    for k in range(rewards.size - 1, -1, -1):
        delta = rewards[k] + discounts[k] * values[k + 1] - values[k]
        following = delta + discounts[k] * lam * following
        result[k] = following
    return result


def episode_gae(rewards: F64, values: F64, gamma: float, lam: float) -> F64:
    """GAE of a whole episode: constant discount, and nothing after the last step."""
    discounts = np.full(rewards.size, gamma)
    discounts[-1:] = 0.0
    return gae(rewards, discounts, np.append(values, 0.0), lam)


def discounted_returns(rewards: F64, gamma: float) -> F64:
    """R_t = r_t + γ·R_{t+1}."""
    return episode_gae(rewards, np.zeros_like(rewards), gamma, 1.0)


def whiten(x: F64, mask: NDArray[np.bool_]) -> F64:
    """(x - mean) / std (ddof 1) over mask, with eps 1e-8 under the root; zeros where fewer than two are left."""
    if int(mask.sum()) < 2:
        return np.zeros_like(x)
    chosen = x[mask]
    whitened: F64 = (x - chosen.mean()) / np.sqrt(chosen.var(ddof=1) + 1e-8)
    return whitened


def explained_variance(values: F64, targets: F64) -> float:
    """1 - Var(R-V)/Var(R); 0 where the targets don't vary."""
    spread = float(np.var(targets)) if targets.size else 0.0
    return 1.0 - float(np.var(targets - values)) / spread if spread > 0 else 0.0
