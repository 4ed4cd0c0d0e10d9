"""A run that is killed and resumed ends with the numbers of one that was not, bit for bit."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from orbax.checkpoint import v1 as ocp

from experiments.run import changes_allowed
from lightning_jax.publish.version import flatten
from tests.e2e.toy import command, config, run, start, training_lines

LONG = ("train.steps=6", "agent.entry=tests.e2e.agents:unpunctual")  # slow enough to be killed between two steps
DIE_IN_CHECKPOINT = """
import os, signal, sys
from orbax.checkpoint import v1 as ocp
from experiments.run import main
save = ocp.save
def save_and_die(path, *arguments):
    save(path, *arguments)
    if "00000004" in str(path):
        os.kill(os.getpid(), signal.SIGKILL)  # arrays written, the rest not
ocp.save = save_and_die
sys.exit(main())
"""


def last_params(folder: Path) -> dict[str, Any]:
    state: Any = ocp.load(sorted((folder / "checkpoints").glob("step-*"))[-1] / "arrays")
    return flatten(state["params"])


def test_killed_twice_and_resumed(tmp_path: Path) -> None:
    whole, killed, log = tmp_path / "whole", tmp_path / "killed", tmp_path / "log"
    run(whole, *LONG)
    process = start(command(killed, *LONG), log)
    deadline = time.monotonic() + 120
    while len(training_lines(killed)) < 3:  # one step beyond the checkpoint of step 2
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert [p.name for p in (killed / "checkpoints").glob("step-*")] == ["step-00000002"]

    died = start([sys.executable, "-c", DIE_IN_CHECKPOINT, f"+resume={killed}"], log)
    assert died.wait(120) == -signal.SIGKILL, log.read_text()
    assert [p.name for p in (killed / "checkpoints").glob("step-*")] == ["step-00000002"]

    resumed = start([sys.executable, "-m", "experiments.run", f"+resume={killed}"], log)
    assert resumed.wait(120) == 0, log.read_text()
    assert log.read_text().count("resuming after step 2") == 2
    assert (killed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    expected, found = last_params(whole), last_params(killed)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="holds a run already: resume it"):
        run(tmp_path)


def test_another_configuration_is_refused_unless_it_is_wanted(tmp_path: Path) -> None:
    """On the command line, as the message says."""
    folder, log = tmp_path / "run", tmp_path / "log"
    run(folder, "train.steps=1")
    (folder / "config.yaml").write_text(yaml.safe_dump(config("train.steps=1")))
    words = [sys.executable, "-m", "experiments.run", f"+resume={folder}", "credit.gamma=0.5", "train.steps=2"]

    def answer(*more: str) -> tuple[int, str]:
        log.unlink(missing_ok=True)
        code = start([*words, *more], log).wait(120)
        return code, log.read_text()

    code, text = answer()
    assert code == 2, text
    for part in ("config hash", "credit.gamma was 0.85, is 0.5", "train.steps was 1, is 2"):
        assert part in text
    flag = re.search(r"knowingly by (\S+)", text)
    assert flag is not None, text
    assert answer("allow_changed_config=False") == (code, text)
    code, text = answer("allow_changed_config=perhaps")
    assert code == 2, text
    assert "'allow_changed_config=perhaps' says neither yes nor no" in text
    code, text = answer(flag[1])
    assert code == 0, text
    assert len(training_lines(folder)) == 2
    assert yaml.safe_load((folder / "config.yaml").read_text())["credit"]["gamma"] == 0.5


@pytest.mark.parametrize(
    ("word", "allowed"), [("=true", True), ("=True", True), ("=TRUE", True), ("=false", False), ("=False", False)]
)
def test_the_flag_is_read_whatever_its_case(word: str, allowed: bool) -> None:
    for name in ("allow_changed_config", "+allow_changed_config"):
        assert changes_allowed([f"{name}{word}", "a=1"]) == (allowed, ["a=1"])


@pytest.mark.parametrize("word", ["allow_changed_config", "allow_changed_config=", "allow_changed_config=1"])
def test_another_value_of_the_flag_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="write allow_changed_config=true or allow_changed_config=false"):
        changes_allowed([word])
