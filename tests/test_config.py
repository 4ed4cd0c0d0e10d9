"""Mistakes on the command line end before anything starts, with the name that was meant."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightning_jax.presets import preset, presets_of, presets_root
from lightning_jax.run.parts import config_hash, read_parts
from tests.e2e.toy import ROOT, config


def experiment(*overrides: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "experiments.run", *overrides]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("+exp=toy", "train.setps=3"), ("train.setps", "did you mean 'train.steps'?")),
        (("+exp=toy", "credit=exponental"), ("exponental", "exponential")),
        (("+exp=toy", "train.steps=many"), ("train.steps", "many")),
    ],
)
def test_the_command_line_teaches(overrides: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = experiment(*overrides)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("credit", "gama", "gamma"),
        ("batch", "bucket", "buckets"),
        ("engine", "slot", "slots"),
        ("algo", "eps_hi", "eps_h"),
    ],
)
def test_sections_that_stages_read_refuse_unknown_keys(section: str, key: str, meant: str) -> None:
    values = config()
    values[section] = {**values[section], key: 1}
    with pytest.raises(ValueError, match=rf"{key}.*{meant}"):
        read_parts(values)


def test_every_option_of_every_group_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    values = config()
    for group in ("algo", "credit", "reward", "batch", "mesh", "engine", "runner", "store"):
        assert presets_of(group)
        for name in presets_of(group):
            choice = preset(group, name)
            if "???" not in choice.values():
                read_parts({**values, group: choice})


def test_files_of_the_command_line_are_those_of_presets() -> None:
    assert (presets_root() / "config.yaml").is_file()
    toy = config()
    assert toy["engine"] == preset("engine", "toy")
    assert yaml.safe_load((ROOT / "conf" / "credit" / "uniform.yaml").read_text()) == preset("credit", "uniform")


def test_the_hash_names_what_decides_the_numbers() -> None:
    base = config_hash(config())
    assert config_hash(config("seed=7", "runner=processes", "name=other")) == base
    assert config_hash(config("credit.gamma=0.5")) != base
    assert config_hash(config("train.steps=5")) != base


@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed here")
def test_no_file_of_the_tree_is_left_out_of_the_package(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path), "egg_info", "-e", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    built = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    source = {f"lightning_jax/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    source |= {str(path.relative_to(ROOT)) for path in (ROOT / "lightning_jax").rglob("*.py*") if path.suffix != ".pyc"}
    assert source <= built
