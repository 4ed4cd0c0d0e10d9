"""Sharding changes no result: eight fake devices, and two processes that speak over gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.batch.examples import agent_calls
from tests.learner.meshes import check_trained, small
from tests.learner.small import params

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # eight devices on two busy cores take their time

PROGRAM = [sys.executable, "-m", "tests.learner.meshes"]
ROOT = Path(__file__).parents[2]


def environment(devices: int) -> dict[str, str]:
    return {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}


def test_meshes_of_eight_devices_give_the_results_of_one(tmp_path: Path) -> None:
    run = subprocess.run(
        [*PROGRAM, "eight", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=580, env=environment(8), check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert "EQUAL" in run.stdout


def test_two_processes_train_save_and_restore_like_one(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    both = [
        subprocess.Popen(
            [*PROGRAM, "two", str(tmp_path), str(rank), port],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(1),
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        answers = [process.communicate(timeout=580) for process in both]
    finally:
        for process in both:
            process.kill()
    for process, (out, err) in zip(both, answers, strict=True):
        assert process.returncode == 0, err[-3000:]
        assert "EQUAL" in out
    one = small(None)
    state, _ = one.update(one.init(params()), agent_calls(0))
    state, metrics = one.update(state, agent_calls(1))
    with np.load(tmp_path / "after.npz") as saved:
        assert float(saved["grad_norm"]) == pytest.approx(metrics["learner/grad_norm"], rel=2e-4)
        found = jax.tree_util.tree_map_with_path(lambda path, _: saved[jax.tree_util.keystr(path)], state["params"])
    check_trained(found, jax.device_get(state["params"]))
