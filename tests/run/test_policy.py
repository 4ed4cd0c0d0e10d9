"""A run's first weights: where they lie, and what rate may train them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import jax
import pytest

from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.presets import preset, presets_of
from lightning_jax.run.experiment import run_experiment
from lightning_jax.run.policy import check_learning_rate
from lightning_jax.server import LightningServer
from tests.e2e.toy import config

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_begins_in_the_shardings_of_its_mesh(tmp_path: Path) -> None:
    """Random or read from files: no device ever has a whole matrix, and the learner takes them without a copy."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-m", "tests.run.sharded", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "SPLIT" in done.stdout


@pytest.mark.parametrize("model", presets_of("model"))
@pytest.mark.parametrize("algo", presets_of("algo"))
def test_no_preset_trains_a_published_model_at_the_rate_of_a_tiny_one(algo: str, model: str) -> None:
    values = preset("algo", algo)
    settings, optimizer = AlgoConfig.from_mapping(values), OptimizerConfig.from_mapping(values["optimizer"])
    sizes = preset("model", model)
    trained = {**sizes, "path": "models/some"} if sizes["path"] == "???" else sizes
    if trained["path"] is None or settings.lora is not None or optimizer.learning_rate <= 1e-5:
        check_learning_rate(trained, settings, optimizer)
        return
    with pytest.raises(ValueError, match=r"=0.000\d on all weights .* above model.max_learning_rate=2e-05"):
        check_learning_rate(trained, settings, optimizer)
    check_learning_rate({**trained, "max_learning_rate": 1e-3}, settings, optimizer)
    check_learning_rate(trained, settings, OptimizerConfig(learning_rate=1e-6))


def test_runs_and_servers_refuse_before_anything_starts(tmp_path: Path) -> None:
    values = config()
    values["model"] = {"name": "big", "path": "models/none"}
    with pytest.raises(ValueError, match=r"learning_rate=0.0015 .* models/none"):
        run_experiment(values, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"learning_rate=0.0003 .* models/none"):
        LightningServer(values["model"], tasks=[{"question": "?"}])
    LightningServer(values["model"])  # one that trains nothing


@pytest.mark.slow
def test_the_first_weights_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second update on nothing holds on to them: they would take their memory until the run ends."""
    begun, alive = list[weakref.ref[Any]](), list[int]()
    init, update = Learner.init, Learner.update

    def watched_init(self: Learner, params: Any) -> Any:
        state = init(self, params)
        begun[:] = [weakref.ref(leaf) for leaf in jax.tree.leaves(state["params"])]
        return state

    def watched_update(self: Learner, state: Any, transitions: Any) -> Any:
        gc.collect()
        alive.append(sum(ref() is not None for ref in begun))
        return update(self, state, transitions)

    monkeypatch.setattr(Learner, "init", watched_init)
    monkeypatch.setattr(Learner, "update", watched_update)
    run_experiment(config("train.steps=2"), tmp_path)
    assert alive == [len(begun), 0]


def test_one_of_several_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(ValueError, match=r"process 0 of 4, but a run's loop is one process.*docs/scaling.md"):
        run_experiment(config(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
