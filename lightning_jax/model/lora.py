"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): W·x becomes W·x + (alpha/rank)·B·(A·x), with W held fixed.

Adapters are leaves of their own, `params["lora"][name] = {"a": [L,r,inputs], "b": [L,outputs,r]}`, beside the model's;
`merged` folds them into the weights, for serving and export. B starts at zero: a fresh adapter changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lightning_jax.configuration import from_mapping
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.sharding import DEFAULT_RULES, ShardingRules, gathered, out_spec
from lightning_jax.model.transformer import PROJECTIONS, ParameterInfo, Params, parameters


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Which matrices get an adapter, and of what rank."""

    rank: int = 16  # r
    alpha: float = 32.0  # the product counts alpha/rank times
    targets: str = "q|k|v|o|gate|up|down"  # regex that the whole name must match

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0:
            raise ValueError(f"lora rank={self.rank} must be at least 1 and alpha={self.alpha} positive")
        try:
            found = self.names
        except re.error as error:
            raise ValueError(f"lora targets={self.targets!r} is no regular expression ({error})") from error
        if not found:
            raise ValueError(f"lora targets={self.targets!r} matches none of {sorted(PROJECTIONS)}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> LoraConfig:
        """From plain data; ValueError names unknown keys and the nearest known ones."""
        return from_mapping(cls, values, where="algo.lora")

    @property
    def names(self) -> tuple[str, ...]:
        """The matrices that get an adapter."""
        return tuple(name for name in PROJECTIONS if re.fullmatch(self.targets, name))

    @property
    def scale(self) -> float:
        """alpha/rank."""
        return self.alpha / self.rank


def lora_parameters(config: ModelConfig, lora: LoraConfig) -> dict[str, dict[str, ParameterInfo]]:
    """Abstract tree of the adapters."""
    layers = parameters(config)["layers"]
    tree = {}
    for name in lora.names:
        shape, axes = layers[name].shape, layers[name].axes
        cut = 1 + len(PROJECTIONS[name][0])  # the layer axis and the outputs
        inputs = 1
        for size in shape[cut:]:
            inputs *= size
        tree[name] = {
            "a": ParameterInfo((shape[0], lora.rank, *shape[cut:]), (axes[0], None, *axes[cut:]), (3 * inputs) ** -0.5),
            "b": ParameterInfo((*shape[:cut], lora.rank), (*axes[:cut], None), 0.0),
        }
    return tree


def merged(params: Params, config: ModelConfig, lora: LoraConfig, rules: ShardingRules = DEFAULT_RULES) -> Params:
    """`params` with the adapters folded into the weights, and without `lora`; the same function of the tokens."""
    infos, layers = parameters(config)["layers"], dict(params["layers"])
    for name, pair in params["lora"].items():
        outputs, inputs = PROJECTIONS[name]
        # split over an axis of the mesh on both sides they could not be multiplied
        low, high = gathered(pair["a"], rules, *(None,) * pair["a"].ndim), pair["b"]
        high = gathered(high, rules, *(None,) * high.ndim)
        change = jnp.einsum(
            f"l{outputs}r,lr{inputs}->l{outputs}{inputs}",
            high.astype(jnp.float32),
            low.astype(jnp.float32),
            precision=jax.lax.Precision.HIGHEST,
            out_sharding=out_spec(rules, *infos[name].axes),
        )
        layers[name] = (layers[name].astype(jnp.float32) + lora.scale * change).astype(layers[name].dtype)
    return {**{k: v for k, v in params.items() if k != "lora"}, "layers": layers}
