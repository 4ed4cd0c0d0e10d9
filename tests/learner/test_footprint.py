"""The planner's bytes are those of a real state, and its table comes from a mesh that isn't there."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.schema import register
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.footprint import Candidate, footprint
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.model.config import Precision
from lightning_jax.model.sharding import make_mesh
from lightning_jax.plan import read
from lightning_jax.presets import presets_root
from lightning_jax.run.parts import read_parts
from tests.learner.small import MODEL, learner, params


def test_state_bytes_are_those_of_the_real_state() -> None:
    state = learner(kl_coef=0.1).init(params())
    real = sum(x.nbytes for name in ("params", "opt_state", "reference") for x in jax.tree.leaves(state[name]))
    found = footprint(
        MODEL, AlgoConfig(kl_coef=0.1), OptimizerConfig(), Precision(), make_mesh(), Candidate(2, 32, 16, 16, "full")
    )
    assert found.state == real
    assert found.gradients == found.new_params == sum(x.nbytes for x in jax.tree.leaves(state["params"]))
    assert found.temporary > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["modle=x"], r"'modle' \(did you mean 'model'\?\)"),
        (["model=x"], "mesh=... is missing"),
        (["model=x", "mesh=fdsp=4"], r"'fdsp' \(did you mean 'fsdp'\?\)"),
        (["model"], "has no value"),
        (["model=x", "mesh=fsdp=4", "tokens=long"], "tokens='long' must be a positive number"),
        (["model=x", "mesh=fsdp="], "fsdp='' must be a positive number"),
    ],
)
def test_arguments_that_are_wrong(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(words)


def test_a_mesh_of_fake_devices() -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "lightning_jax.plan",
            "model=smollm2_135m",
            "mesh=fsdp=2,tensor=3",
            "tokens=64",
            "memory=8",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "6 devices (data=1 fsdp=2 tensor=3)" in run.stdout
    taken = run.stdout.splitlines()[-1].split()
    assert taken[:2] == ["take:", "batch.buckets=[64]"]
    register()
    with initialize_config_dir(str(presets_root()), version_base="1.3"):
        parts = read_parts(OmegaConf.to_container(compose("config", overrides=["+exp=toy", *taken[1:]])))
    assert (parts.batch.buckets, parts.batch.entries_per_token, parts.algo.logp_chunk) == ((64,), 0.25, 16)
