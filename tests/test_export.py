"""`python -m lightning_jax.export`: what is written is the checkpoint's policy, and mistakes are told from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from lightning_jax.export import export_run, main
from lightning_jax.learner.learner import Learner
from lightning_jax.model.pretrained import load_model
from lightning_jax.publish.checkpoint import Checkpoints
from lightning_jax.run.parts import config_hash, load_study, read_parts
from lightning_jax.run.policy import build_policy
from tests.e2e.toy import config


def changed(tree: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(x.dtype), tree)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Any]]:
    """A run's folder with two checkpoints, the first with the better score, and the policies in them."""
    folder = tmp_path_factory.mktemp("run")
    values = config("algo=grpo_lora")
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    parts = read_parts(values)
    policy = build_policy(values["model"], load_study(values["task"]).corpus, parts.seed)
    learner = Learner(policy.config, parts.algo, parts.batch, parts.optimizer, precision=policy.precision)
    checkpoints = Checkpoints(folder / "checkpoints", config_hash=f"{config_hash(values)} seed {parts.seed}")
    served = {}
    state = learner.init(policy.params)
    for step, score in ((2, 0.5), (4, 0.25)):
        state = {**state, "params": changed(state["params"], step)}
        checkpoints.save(step, state, {"step": step, "policy_version": step}, score=score)
        served[step] = jax.device_get(learner.served(state))
    return folder, served


@pytest.mark.parametrize(("wanted", "step"), [("latest", 4), ("best", 2), (2, 2)])
def test_the_policy_of_a_checkpoint(
    trained: tuple[Path, dict[int, Any]], wanted: int | str, step: int, tmp_path: Path
) -> None:
    """Adapters are in the weights, the tokenizer is the run's, and the directory loads like any published model."""
    folder, served = trained
    assert export_run(folder, tmp_path / "out", step=wanted) == step
    loaded = load_model(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(loaded.params), served[step])
    assert loaded.tokenizer.vocab_size == loaded.config.vocab_size


def test_the_command_line_says_what_is_wrong(
    trained: tuple[Path, dict[int, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = trained
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for words, said in (
        ([str(folder), str(full)], "not an empty folder"),
        ([str(tmp_path), str(tmp_path / "out")], "no config.yaml"),
        ([str(folder), str(tmp_path / "out"), "--step", "3"], "there are [2, 4]"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
