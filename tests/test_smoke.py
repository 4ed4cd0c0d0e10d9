"""The least that must hold on every supported Python: everything imports, and the circle turns twice."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

import experiments
import lightning_jax
from tests.e2e.toy import run, training_lines


@pytest.mark.parametrize("package", [lightning_jax, experiments])
def test_everything_imports(package: object) -> None:
    paths, name = package.__path__, package.__name__  # type: ignore[attr-defined]
    found = [module.name for module in pkgutil.walk_packages(paths, f"{name}.")]
    assert len(found) > 20
    for module in found:
        importlib.import_module(module)


def test_two_steps_of_the_toy_study(tmp_path: Path) -> None:
    summary = run(tmp_path, "train.steps=2")
    assert summary["status"] == "finished"
    assert [line["step"] for line in training_lines(tmp_path)] == [1, 2]
