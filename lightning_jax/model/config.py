"""The shape of a decoder: one frozen, hashable record that every jitted function takes as a static argument.

The fields cover Llama 2/3, SmolLM2, Qwen2.5, Qwen3 and Mistral; a family is a setting of them, not a class of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_jax.configuration import from_mapping


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's frequency scaling (rope_type "llama3" of a HF config)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of a decoder-only transformer.

    Letters used in shapes all over the package: V vocabulary, L layers, D embedding, F hidden of the MLP,
    K key/value heads, G query heads per key/value head, H = K·G query heads, h size of a head.
    """

    vocab_size: int  # V
    num_layers: int  # L
    embed_dim: int  # D
    mlp_dim: int  # F
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # h
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    qkv_bias: bool = False  # Qwen2
    qk_norm: bool = False  # Qwen3
    sliding_window: int | None = None  # Mistral: keys further back than this are not seen
    max_position: int = 2048

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}: "
                "every key/value head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd: rotary embedding turns pairs of dimensions")

    @property
    def num_groups(self) -> int:
        """G: query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build from plain data (YAML); ValueError names unknown keys and the nearest known one."""
        scaling = values.get("rope_scaling")
        if isinstance(scaling, Mapping):
            values = {**values, "rope_scaling": RopeScaling(**scaling)}
        return from_mapping(cls, values, where="model.config")


@dataclass(frozen=True, slots=True)
class Precision:
    """dtype policy: master weights, arithmetic of the blocks. Logits and log-softmax are always float32."""

    param: str = "float32"
    compute: str = "float32"
