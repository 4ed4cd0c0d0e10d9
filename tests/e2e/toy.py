"""Short runs of the toy study: in this process, or as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from experiments.schema import register
from lightning_jax.presets import presets_root
from lightning_jax.run.experiment import run_experiment

ROOT = Path(__file__).parents[2]
SHORT = (
    "train.steps=4",
    "train.tasks_per_step=3",
    "train.samples_per_task=4",
    "train.checkpoint_every=2",
    "warmup.steps=20",
    "warmup.lr_warmup_steps=5",
    "model.config.num_layers=1",
)


def config(*overrides: str) -> dict[str, Any]:
    """What `python -m experiments.run +exp=toy ...` would run, shortened."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(presets_root())):
        composed = compose("config", overrides=["+exp=toy", *SHORT, *overrides])
    plain: Any = OmegaConf.to_container(composed, resolve=True)
    plain.pop("sweep", None)
    return {str(k): v for k, v in plain.items()}


def run(folder: Path, *overrides: str, **options: Any) -> dict[str, Any]:
    """A run in this process; returns its summary."""
    return run_experiment(config(*overrides), folder, **options)


def command(folder: Path, *overrides: str) -> list[str]:
    """The command line of a run in `folder`."""
    return [sys.executable, "-m", "experiments.run", "+exp=toy", f"hydra.run.dir={folder}", *SHORT, *overrides]


def start(words: list[str], log: Path, **environment: str) -> subprocess.Popen[str]:
    """A process whose output goes to `log` (stderr and stdout)."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output:
        return subprocess.Popen(
            words, cwd=ROOT, stdout=output, stderr=output, text=True, env={**os.environ, **environment}
        )


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def training_lines(folder: Path) -> list[dict[str, Any]]:
    """Those of optimiser steps; [] before there are any."""
    if not (folder / "metrics.jsonl").exists():
        return []
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]  # the last piece is empty, or still being written
    return [line for line in lines if "learner/loss" in line]
