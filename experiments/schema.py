"""The structured part of the configuration: types for Hydra, taken from the records that the stages use anyway.

Sections that stages read themselves (credit, reward, algo, ...) are plain mappings here; stages refuse unknown keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from lightning_jax.run.config import EvalConfig, RunnerConfig, ServerConfig, StoreConfig, TrainConfig, WarmupConfig


def thawed(record: type) -> Any:
    """The dataclass without `frozen`: Hydra composes by assignment, and takes a frozen one for read-only."""
    hints = get_type_hints(record)
    return make_dataclass(record.__name__, [(f.name, hints[f.name], field(default=f.default)) for f in fields(record)])


@dataclass
class RunConfig:
    """All sections of a run."""

    name: str = MISSING
    seed: int = 0
    train: Any = field(default_factory=thawed(TrainConfig))
    eval: Any = field(default_factory=thawed(EvalConfig))
    warmup: Any = field(default_factory=thawed(WarmupConfig))
    runner: Any = field(default_factory=thawed(RunnerConfig))
    server: Any = field(default_factory=thawed(ServerConfig))
    store: Any = field(default_factory=thawed(StoreConfig))
    task: dict[str, Any] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    algo: dict[str, Any] = field(default_factory=dict)
    credit: dict[str, Any] = field(default_factory=dict)
    reward: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    mesh: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    serve: dict[str, Any] = field(default_factory=dict)


def register() -> None:
    """Make the schema known to Hydra as config `schema`."""
    ConfigStore.instance().store(name="schema", node=RunConfig)
