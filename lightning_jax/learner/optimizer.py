"""Optimisers with global-norm clipping and a schedule, from plain data: AdamW in three sizes, Muon, Adafactor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, muon

from lightning_jax.configuration import from_mapping
from lightning_jax.learner.adam8bit import scale_by_adam_8bit
from lightning_jax.model.sharding import has_mesh

SCHEDULES = ("constant", "cosine", "linear")
NAMES = ("adamw", "adamw8bit", "muon", "adafactor")
# (axes contracted with the input, axes of the output) of each stacked matrix; the layer axis is a batch
MUON_AXES = {
    "q": MuonDimensionNumbers((4,), (1, 2, 3)),
    "k": MuonDimensionNumbers((3,), (1, 2)),
    "v": MuonDimensionNumbers((3,), (1, 2)),
    "o": MuonDimensionNumbers((2, 3, 4), (1,)),
    "gate": MuonDimensionNumbers((2,), (1,)),
    "up": MuonDimensionNumbers((2,), (1,)),
    "down": MuonDimensionNumbers((2,), (1,)),
}


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """What turns gradients into updates. Bytes of state per parameter, beside the parameter itself, in brackets.

    adamw: Loshchilov & Hutter (arXiv 1711.05101) [8; 6 with moment_dtype bfloat16]. adamw8bit: its moments in eight
    bits, see adam8bit.py [2]. muon: Jordan et al. 2024, orthogonalised momentum for the blocks' matrices, AdamW for all
    else [4]. adafactor: Shazeer & Stern (arXiv 1804.04235), factored second moment, no first [almost 0].
    """

    name: str = "adamw"  # adamw | adamw8bit | muon | adafactor
    muon_learning_rate: float = 0.02  # of the orthogonalised part; `learning_rate` is AdamW's
    learning_rate: float = 1e-6
    schedule: str = "constant"  # after warm-up: constant | cosine | linear (both to final_fraction)
    warmup_steps: int = 0
    total_steps: int = 0  # end of cosine and linear decay
    final_fraction: float = 0.0
    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-8  # of AdamW; muon also divides by its gradient's norm + eps
    weight_decay: float = 0.0  # matrices only; with muon only those that it orthogonalises
    grad_clip: float | None = 1.0  # global norm; None: off
    moment_dtype: str | None = None  # of the first moment (adamw, muon), e.g. bfloat16; None: as the parameters
    min_size_8bit: int = 4096  # adamw8bit: leaves with fewer elements keep float32 moments
    offload: bool = False  # keep the state in the host's memory between steps

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"optimizer name={self.name!r} is not one of {NAMES}")
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
        return from_mapping(cls, values, where="optimizer")


def schedule(config: OptimizerConfig, peak: float) -> optax.Schedule:
    """Learning rate of an optimiser step, `peak` at its highest."""
    steps = config.total_steps - config.warmup_steps
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
    """Clipping, then the update rule. Norm scales and biases are not decayed."""

    def decayed(params: Any) -> Any:
        def matrix(path: Any, x: jax.Array) -> bool:
            name = str(getattr(path[-1], "key", ""))
            return x.ndim >= 2 and not name.endswith(("norm", "bias"))

        return jax.tree_util.tree_map_with_path(matrix, params)

    clip = optax.clip_by_global_norm(config.grad_clip) if config.grad_clip is not None else optax.identity()
    rate = schedule(config, config.learning_rate)
    if config.name == "muon":
        return optax.chain(clip, without_sharding_types(_muon(config, rate)))
    if config.name == "adamw8bit":
        moments = scale_by_adam_8bit(config.b1, config.b2, config.eps, min_size=config.min_size_8bit)
        decay = optax.add_decayed_weights(config.weight_decay, decayed)
        return optax.chain(clip, without_sharding_types(moments), decay, optax.scale_by_learning_rate(rate))
    if config.name == "adafactor":
        # given rate and decay it would not multiply the one by the other; without them it is a bare descent direction
        factored = optax.adafactor(None, multiply_by_parameter_scale=False)
        decay = optax.add_decayed_weights(-config.weight_decay, decayed)
        rated = optax.scale_by_learning_rate(rate, flip_sign=False)
        return optax.chain(clip, without_sharding_types(factored), decay, rated)
    adam = optax.adamw(
        rate,
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=decayed,
        mu_dtype=config.moment_dtype,
    )
    return optax.chain(clip, adam)


def _muon(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    def axes(params: Any) -> Any:
        def of(path: Any, _: jax.Array) -> MuonDimensionNumbers | None:
            names = [str(getattr(key, "key", "")) for key in path]
            return MUON_AXES.get(names[-1]) if "layers" in names else None

        return jax.tree_util.tree_map_with_path(of, params)

    return muon(
        schedule(config, config.muon_learning_rate),
        eps=config.eps,
        weight_decay=config.weight_decay,
        mu_dtype=config.moment_dtype,
        adam_b1=config.b1,
        adam_b2=config.b2,
        adam_learning_rate=rate,
        muon_weight_dimension_numbers=axes,
    )


def without_sharding_types(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """`tx` for an Explicit mesh: its own products are laid out by the compiler, its results as they came in."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not has_mesh():
            plain: tuple[Any, Any] = tx.update(grads, state, params)
            return plain
        specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, (grads, state))
        result: tuple[Any, Any] = jax.sharding.auto_axes(tx.update, out_sharding=specs)(grads, state, params)
        return result

    return optax.GradientTransformation(tx.init, update)
