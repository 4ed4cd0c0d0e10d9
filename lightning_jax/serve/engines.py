"""Which engine a configuration means: the one in this process, or a vLLM server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_jax.configuration import check_name
from lightning_jax.model.config import ModelConfig
from lightning_jax.serve.config import EngineConfig
from lightning_jax.serve.engine import Engine
from lightning_jax.serve.policy_engine import PolicyEngine
from lightning_jax.serve.vllm.config import VllmConfig
from lightning_jax.serve.vllm.engine import VllmEngine

KINDS = ("jax", "vllm")


def read_engine(values: Mapping[str, Any]) -> EngineConfig | VllmConfig:
    """The `engine` section, by its `kind` (default jax); ValueError names what is unknown."""
    kind = str(values.get("kind", "jax"))
    check_name(kind, KINDS, "engine.kind")
    rest = {name: value for name, value in values.items() if name != "kind"}
    return VllmConfig.from_mapping(rest) if kind == "vllm" else EngineConfig.from_mapping(rest)


def build_engine(model: ModelConfig, config: EngineConfig | VllmConfig, eos_ids: tuple[int, ...]) -> PolicyEngine:
    """The engine, not yet started."""
    if isinstance(config, VllmConfig):
        return VllmEngine(model, config, eos_ids)
    return Engine(model, config, eos_ids)
