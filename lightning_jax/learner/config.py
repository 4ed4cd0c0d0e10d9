"""What the learner minimises: one record for GRPO, Dr. GRPO, PPO and their relatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_jax.batch.weights import AGGREGATIONS
from lightning_jax.configuration import from_mapping

LOSSES = ("ppo", "gspo", "cispo")
ESTIMATORS = ("k1", "k2", "k3")
CONTROLS = ("fixed", "adaptive", "guard")


@dataclass(frozen=True, slots=True)
class AlgoConfig:
    """Algorithm settings; baselines over groups are credit's (`baseline` in the same YAML file)."""

    loss: str = "ppo"  # ppo | gspo | cispo
    eps_low: float = 0.2
    eps_high: float = 0.28
    dual_clip: float | None = 3.0  # c > 1; None: off
    aggregation: str = "per-rollout-mean"  # see batch/weights.py
    aggregation_constant: float = 1024.0  # of aggregation "constant": usually the response limit
    epochs: int = 1
    mini_batches: int = 1  # optimiser steps per epoch
    tis: float | None = 2.0  # limit of the token weight π_old/μ; None: off
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # 0: no reference policy is kept
    kl_estimator: str = "k3"
    kl_bias_correction: bool = True
    kl_control: str = "fixed"  # fixed | adaptive | guard
    kl_target: float = 0.1  # nat per token
    kl_horizon: float = 10_000.0  # adaptive: rollouts over which a full error changes the coefficient by 20%
    kl_max: float = 0.3  # guard: largest coefficient
    kl_blowup: float = 0.5  # guard: mean KL of three updates that makes it fire, nat per token
    critic: bool = False  # PPO: value head and turn-level GAE; credit must be applied to rewards
    gamma: float = 1.0
    lam: float = 0.95
    value_clip: float | None = 0.2
    value_coef: float = 0.1
    critic_warmup: int = 0  # updates that train the value head's loss only
    whiten_advantages: bool = False  # over the update's trained transitions
    skip_zero_advantage: bool = True  # don't compute what has no gradient
    logp_chunk: int = 0  # loss entries of a row whose logits exist at a time; 0: all
    remat: bool = False  # recompute blocks in the backward pass
    seed: int = 0  # which tasks share a mini-batch

    def __post_init__(self) -> None:
        for name, value, known in (
            ("loss", self.loss, LOSSES),
            ("aggregation", self.aggregation, AGGREGATIONS),
            ("kl_estimator", self.kl_estimator, ESTIMATORS),
            ("kl_control", self.kl_control, CONTROLS),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r} is not one of {known}")
        for name in ("epochs", "mini_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip={self.dual_clip} must be above 1: below, it cuts every negative advantage")
        if not 0 <= self.eps_low <= 1 or self.eps_high < 0:
            raise ValueError(f"eps_low={self.eps_low} must lie in [0, 1] and eps_high={self.eps_high} be at least 0")
        if self.tis is not None and self.tis <= 0:
            raise ValueError(f"tis={self.tis} must be positive; use null to turn it off")
        if self.kl_coef < 0 or (self.kl_coef == 0 and self.kl_control != "fixed"):
            raise ValueError(
                f"kl_control={self.kl_control!r} with kl_coef={self.kl_coef}: a controller needs a positive "
                "coefficient to start from, because the reference policy is kept only then"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> AlgoConfig:
        """From plain data; ValueError names unknown keys and the nearest known ones.

        `name`, `baseline` (credit's) and `optimizer` (OptimizerConfig's) of the same YAML file are left alone.
        """
        return from_mapping(cls, values, where="algo", ignored=frozenset({"name", "baseline", "optimizer"}))

    @property
    def on_policy(self) -> bool:
        """One optimiser step per update: π_old is the policy itself and the ratio is exactly 1."""
        return self.epochs == 1 and self.mini_batches == 1

    @property
    def reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self.kl_coef > 0

    @property
    def may_skip(self) -> bool:
        """Whether a transition with advantage 0 has no gradient at all."""
        return self.skip_zero_advantage and not (self.critic or self.reference or self.entropy_coef)
