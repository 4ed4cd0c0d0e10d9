"""The engine on a mesh: eight fake devices sample what one does, before and after new weights."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_jax.serve.engine import Engine
from tests.serve.conftest import ENGINE, MODEL

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_meshes_of_eight_devices_sample_what_one_does() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    run = subprocess.run(
        [sys.executable, "-m", "tests.serve.mesh_program"],
        cwd=ROOT, capture_output=True, text=True, timeout=580, check=False,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert "EQUAL" in run.stdout


def test_meshes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_kv_heads=2.*4 devices"):
        Engine(MODEL, replace(ENGINE, tensor_devices=4))
    with pytest.raises(ValueError, match=r"slots=8.*3 devices"):
        Engine(MODEL, replace(ENGINE, data_devices=3))
    with pytest.raises(ValueError, match="need 2 devices"):
        Engine(MODEL, replace(ENGINE, data_devices=2))
    with pytest.raises(ValueError, match="data_devices=0"):
        replace(ENGINE, data_devices=0)
