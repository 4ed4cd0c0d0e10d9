"""What the learner minimises: one record for GRPO, Dr. GRPO, RLOO, REINFORCE++, DAPO, GSPO, CISPO and PPO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_jax.batch.weights import AGGREGATIONS
from lightning_jax.configuration import from_mapping
from lightning_jax.model.attention import ATTENTIONS
from lightning_jax.model.lora import LoraConfig
from lightning_jax.model.transformer import REMAT_POLICIES

LOSSES = ("ppo", "gspo", "cispo")
ADVANTAGES = ("credit", "return", "turn_gae", "token_gae")
ESTIMATORS = ("k1", "k2", "k3")
KL_PLACES = ("loss", "reward")
CONTROLS = ("fixed", "adaptive", "guard")
LEVELS = ("token", "sequence")
CRITICS = ("shared", "separate")
Band = tuple[float, float]


@dataclass(frozen=True, slots=True)
class AlgoConfig:
    """Algorithm settings; baselines over groups are credit's (`baseline` in the same YAML file)."""

    loss: str = "ppo"  # ppo | gspo | cispo
    eps_low: float = 0.2
    eps_high: float = 0.28
    dual_clip: float | None = 3.0  # c > 1, of loss ppo only; None: off
    aggregation: str = "per-rollout-mean"  # see batch/weights.py
    aggregation_constant: float | None = None  # of aggregation "constant"; None: a run takes train.max_tokens
    epochs: int = 1
    mini_batches: int = 1  # optimiser steps per epoch
    # credit: what the credit stage computed; the others start from credited rewards (credit.apply_to=reward):
    # return: discounted token return (REINFORCE++); turn_gae, token_gae: a critic's, see gae.py
    advantage: str = "credit"
    whiten_advantages: bool = False  # over the update's trained tokens; with turn_gae over its transitions
    # the sampler's policy μ against π_old: at most one of tis and icepop
    tis: float | None = 2.0  # the loss is weighted by min(π_old/μ, tis); None: off
    tis_level: str = "token"  # token | sequence: the ratio of a whole transition
    icepop: Band | None = None  # [low, high]: weight π_old/μ inside, 0 outside
    reject: Band | None = None  # [low, high]: transitions whose geometric mean of π_old/μ lies outside are left out
    mask_truncated: bool = False  # leave out transitions that were cut at the token limit (overlong filtering)
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # 0: no reference policy is kept, unless kl_allow_enable
    kl_in: str = "loss"  # loss | reward: subtracted from the rewards as k1; not with advantage "credit"
    kl_estimator: str = "k3"  # of kl_in=loss
    kl_bias_correction: bool = True
    kl_control: str = "fixed"  # fixed | adaptive | guard
    kl_target: float = 0.1  # nat per token
    kl_horizon: float = 10_000.0  # adaptive: rollouts over which a full error changes the coefficient by 20%
    kl_max: float = 0.3  # guard: largest coefficient
    kl_blowup: float | None = None  # guard: fires above this mean KL of three updates, nat per token; None: 3·kl_target
    kl_allow_enable: bool = False  # guard: watch the KL at kl_coef 0 too, and begin the term with kl_max
    gamma: float = 1.0  # per transition with turn_gae, per token otherwise
    lam: float = 0.95
    critic: str = "shared"  # with turn_gae, token_gae: head on the policy's trunk | separate model, begun as its copy
    value_clip: float | None = 0.2
    value_coef: float = 0.1
    critic_warmup: int = 0  # updates that train the critic only
    skip_zero_advantage: bool = True  # don't compute what has no gradient
    lora: LoraConfig | None = None  # train low-rank adapters, and no other part of the model
    frozen: str | None = None  # regex: parameters (dotted names) that are not trained, e.g. "embed|layers\\.(gate|up)"
    logp_chunk: int = 256  # loss entries of a row whose logits exist at a time; 0: all
    remat: str = "none"  # what the backward pass recomputes: see REMAT_POLICIES
    attention: str = "blocks"  # how it is computed: blocks; fused (cuDNN on GPUs, in 16 bits); dense
    seed: int = 0  # which tasks share a mini-batch; adapters' first values

    def __post_init__(self) -> None:
        for name, known in (
            ("loss", LOSSES),
            ("aggregation", AGGREGATIONS),
            ("advantage", ADVANTAGES),
            ("tis_level", LEVELS),
            ("kl_in", KL_PLACES),
            ("kl_estimator", ESTIMATORS),
            ("kl_control", CONTROLS),
            ("critic", CRITICS),
            ("remat", tuple(REMAT_POLICIES)),
            ("attention", tuple(ATTENTIONS)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {known}")
        for name in ("epochs", "mini_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        try:
            re.compile(self.frozen or "")
        except re.error as error:
            raise ValueError(f"frozen={self.frozen!r} is no regular expression ({error})") from error
        self._check_losses()
        self._check_mismatch()
        self._check_kl()

    def _check_losses(self) -> None:
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip={self.dual_clip} must be above 1: below, it cuts every negative advantage")
        if not 0 <= self.eps_low <= 1 or self.eps_high < 0:
            raise ValueError(f"eps_low={self.eps_low} must lie in [0, 1] and eps_high={self.eps_high} be at least 0")
        if self.loss == "gspo" and self.advantage in ("return", "token_gae"):
            raise ValueError(
                f"loss=gspo clips a whole transition, but advantage={self.advantage} differs from token to token; "
                "use advantage=credit or turn_gae"
            )
        if self.loss != "ppo" and self.dual_clip is not None:
            raise ValueError(f"dual_clip={self.dual_clip} acts with loss=ppo only, not {self.loss}: set it to null")
        if self.aggregation_constant is not None and self.aggregation_constant <= 0:
            raise ValueError(f"aggregation_constant={self.aggregation_constant} must be positive")

    def _check_mismatch(self) -> None:
        if self.tis is not None and self.tis <= 0:
            raise ValueError(f"tis={self.tis} must be positive; use null to turn it off")
        if self.tis is not None and self.icepop is not None:
            raise ValueError(
                f"tis={self.tis} and icepop={self.icepop} both weight the loss by π_old/μ: set one to null"
            )
        for name in ("icepop", "reject"):
            band = getattr(self, name)
            if band is not None and not (len(band) == 2 and 0 <= band[0] < band[1]):
                raise ValueError(f"{name}={band} must be two ratios [low, high] with 0 <= low < high")

    def _check_kl(self) -> None:
        if self.kl_allow_enable and self.kl_control != "guard":
            raise ValueError(
                f"kl_allow_enable=True with kl_control={self.kl_control!r}: only the guard can begin a KL term; set "
                "kl_control=guard, or kl_allow_enable=false"
            )
        if self.kl_coef < 0 or (self.kl_coef == 0 and self.kl_control != "fixed" and not self.kl_allow_enable):
            raise ValueError(
                f"kl_control={self.kl_control!r} with kl_coef={self.kl_coef}: a controller needs a positive "
                "coefficient to start from, because the reference policy is kept only then (the guard can do with 0 "
                "where kl_allow_enable=true keeps it all the same)"
            )
        if self.kl_control == "guard" and self.kl_coef > self.kl_max:
            raise ValueError(
                f"kl_coef={self.kl_coef} is above kl_max={self.kl_max}: the guard would lower it when the KL explodes; "
                "raise kl_max or lower kl_coef"
            )
        if self.kl_target <= 0 or self.kl_horizon <= 0 or self.blowup <= 0:
            raise ValueError(
                f"kl_target={self.kl_target}, kl_horizon={self.kl_horizon} and kl_blowup={self.blowup} must be positive"
            )
        if self.kl_in == "reward" and self.advantage == "credit":
            raise ValueError(
                "kl_in=reward with advantage=credit: group baselines are taken before the update, and KL noise in them "
                "makes gradients of zero-variance groups; use kl_in=loss, or advantage=return or turn_gae or token_gae"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> AlgoConfig:
        """From plain data; ValueError names unknown keys and the nearest known ones.

        `name`, `baseline` (credit's) and `optimizer` (OptimizerConfig's) of the same YAML file are left alone.
        """
        lora = values.get("lora")
        if isinstance(lora, Mapping):
            values = {**values, "lora": LoraConfig.from_mapping(lora)}
        return from_mapping(cls, values, where="algo", ignored=frozenset({"name", "baseline", "optimizer"}))

    @property
    def constant(self) -> float:
        """What aggregation "constant" divides by. ValueError where it is needed and was not given."""
        if self.aggregation_constant is None and self.aggregation == "constant":
            raise ValueError(
                f"aggregation={self.aggregation!r} with aggregation_constant=None: give it the response limit"
            )
        return self.aggregation_constant or 1.0

    @property
    def on_policy(self) -> bool:
        """One optimiser step per update: π_old is the policy itself and the ratio is exactly 1."""
        return self.epochs == 1 and self.mini_batches == 1

    @property
    def reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self.kl_coef > 0 or self.kl_allow_enable

    @property
    def blowup(self) -> float:
        """Mean KL of the last updates, nat per token, above which the guard fires."""
        return 3.0 * self.kl_target if self.kl_blowup is None else self.kl_blowup

    @property
    def has_critic(self) -> bool:
        """Whether values are learned."""
        return self.advantage in ("turn_gae", "token_gae")

    @property
    def needs_rewards(self) -> bool:
        """Whether `credit` of a transition must be its reward (credit.apply_to=reward), not a weight."""
        return self.advantage != "credit"

    @property
    def rewrites_advantages(self) -> bool:
        """Whether advantages are computed from what the policy says of the batch, before the first step."""
        return self.needs_rewards or self.whiten_advantages

    @property
    def evaluates(self) -> bool:
        """Whether the policy looks at the batch before the first step."""
        return not self.on_policy or self.has_critic or self.reject is not None or self.kl_in == "reward"

    @property
    def may_skip(self) -> bool:
        """Whether a transition with advantage 0 has no gradient at all."""
        plain = not (self.rewrites_advantages or self.reference or self.entropy_coef or self.reject)
        return self.skip_zero_advantage and plain
