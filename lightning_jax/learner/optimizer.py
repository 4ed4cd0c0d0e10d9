"""AdamW with global-norm clipping and a schedule, from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import optax

from lightning_jax.batch.mapping import build

SCHEDULES = ("constant", "cosine", "linear")


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101)."""

    learning_rate: float = 1e-6
    schedule: str = "constant"  # after warm-up: constant | cosine | linear (both to final_fraction)
    warmup_steps: int = 0
    total_steps: int = 0  # end of cosine and linear decay
    final_fraction: float = 0.0
    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0  # matrices only
    grad_clip: float | None = 1.0  # global norm; None: off
    moment_dtype: str | None = None  # of the first moment; None: as the parameters

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r} is not one of {SCHEDULES}")
        if self.schedule != "constant" and self.total_steps <= self.warmup_steps:
            raise ValueError(
                f"schedule={self.schedule!r} needs total_steps={self.total_steps} above "
                f"warmup_steps={self.warmup_steps}"
            )
        if self.learning_rate < 0 or (self.grad_clip is not None and self.grad_clip <= 0):
            raise ValueError(
                f"learning_rate={self.learning_rate} must not be negative, and "
                f"grad_clip={self.grad_clip} must be positive or null"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> OptimizerConfig:
        """From plain data; ValueError names unknown keys and the nearest known ones."""
        return build(cls, values, where="optimizer")


def schedule(config: OptimizerConfig) -> optax.Schedule:
    """Learning rate of an optimiser step."""
    peak, steps = config.learning_rate, config.total_steps - config.warmup_steps
    after: optax.Schedule
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, steps, alpha=config.final_fraction)
    elif config.schedule == "linear":
        after = optax.linear_schedule(peak, peak * config.final_fraction, steps)
    else:
        after = optax.constant_schedule(peak)
    if not config.warmup_steps:
        return after
    # step 0 already moves: a first step of learning rate 0 would be an update in name only
    rise = optax.linear_schedule(peak / config.warmup_steps, peak, max(1, config.warmup_steps - 1))
    return optax.join_schedules([rise, after], [config.warmup_steps])


def optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """clip ∘ AdamW. Norm scales and biases (one dimension besides the stacked layers') are not decayed."""

    def decayed(params: Any) -> Any:
        def matrix(path: Any, x: jax.Array) -> bool:
            name = str(getattr(path[-1], "key", ""))
            return x.ndim >= 2 and not name.endswith(("norm", "bias"))

        return jax.tree_util.tree_map_with_path(matrix, params)

    adam = optax.adamw(
        schedule(config),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=decayed,
        mu_dtype=config.moment_dtype,
    )
    clip = optax.clip_by_global_norm(config.grad_clip) if config.grad_clip is not None else optax.identity()
    return optax.chain(clip, adam)
