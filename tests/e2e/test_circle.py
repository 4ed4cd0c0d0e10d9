"""The whole circle as a user starts it: agents over HTTP, rewards, credit, updates, publishing; and it learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.e2e.toy import ROOT, metrics, training_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy study with its own settings, by its command."""
    place = tmp_path_factory.mktemp("circle") / "run"
    words = [sys.executable, "-m", "experiments.run", "+exp=toy", "seed=5", f"hydra.run.dir={place}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(place)  # the folder alone, for scripts
    assert "held-out tasks" in done.stderr
    return place


def test_it_learns_from_reward_alone(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["eval_before"]["pair_accuracy"] <= 0.6
    assert summary["eval_after"]["pair_accuracy"] >= 0.85
    rewards = [line["reward/mean"] for line in training_lines(folder)]
    assert rewards[0] < 0.5
    assert np.mean(rewards[-3:]) > 0.85


def test_every_step_is_trained_on_what_its_own_policy_sampled(folder: Path) -> None:
    lines = training_lines(folder)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert max(line["learner/gap_max_nat"] for line in lines) < 1e-3  # the engine's log-probs are the learner's
    assert all(line["learner/ratio_max"] == 1.0 for line in lines)
    rows = pd.concat([pd.read_parquet(part) for part in sorted((folder / "transitions").iterdir())])
    assert (rows["policy_version"] == rows["step"]).all()
    assert set(rows["status"]) == {"succeeded"}
    assert rows.groupby("rollout_id").size().eq(2).all()


def test_what_a_run_leaves_behind(folder: Path) -> None:
    for name in ("config.yaml", "environment.json", "warmup.json", "timings.jsonl", "store.sqlite"):
        assert (folder / name).stat().st_size > 0, name
    assert list((folder / "tensorboard").iterdir())
    lines = training_lines(folder)
    evaluated = [line["step"] for line in metrics(folder) if "eval/pair_accuracy" in line]
    assert evaluated == [0, lines[-1]["step"]]
    evaluation = pd.read_parquet(sorted((folder / "evaluations").iterdir())[-1])
    summary = json.loads((folder / "summary.json").read_text())
    assert evaluation["correct"].mean() == summary["eval_after"]["pair_accuracy"]
