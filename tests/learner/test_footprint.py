"""The planner's bytes are those of a real state, and its table comes from a mesh that isn't there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import jax
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.schema import register
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.footprint import Candidate, candidates, footprint, may_save
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
    assert (parts.batch.buckets, parts.batch.entries_per_token, parts.algo.logp_chunk) == ((64,), 0.25, 0)


def test_candidates_go_from_the_fastest_to_the_smallest() -> None:
    chunks = [c.logp_chunk for c in candidates(1024, 300, 2) if (c.remat, c.rows) == ("none", 8)]
    assert chunks == [0, 256, 128]
    assert list(dict.fromkeys(c.remat for c in candidates(64, 16, 1))) == ["none", "dots", "full"]
    assert [c.remat for c in candidates(64, 16, 1, offload=True)][::3] == ["none", "dots", "offload", "full"]


def test_smaller_chunks_take_less_and_no_less_than_said() -> None:
    """What chunking saves is within the bound by which the planner leaves hopeless candidates out."""
    model = replace(MODEL, vocab_size=4096)
    whole, half = (
        footprint(model, AlgoConfig(), OptimizerConfig(), Precision(), make_mesh(), Candidate(4, 64, 64, chunk, "full"))
        for chunk in (0, 16)
    )
    assert half.temporary < whole.temporary
    assert whole.temporary - half.temporary <= may_save(whole.candidate, 4096, make_mesh())
    assert may_save(half.candidate, 4096, make_mesh()) * 4 == may_save(whole.candidate, 4096, make_mesh())


def test_several_optimiser_steps_keep_the_first_parameters() -> None:
    one, several = (
        footprint(
            MODEL,
            AlgoConfig(mini_batches=n),
            OptimizerConfig(),
            Precision(),
            make_mesh(),
            Candidate(2, 32, 16, 0, "full"),
        )
        for n in (1, 2)
    )
    assert several.new_params == 2 * one.new_params
