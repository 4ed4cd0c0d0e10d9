"""Runs that leave groups of constant outcome out: what they train on, and that they repeat and resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.e2e.toy import run, training_lines

pytestmark = pytest.mark.slow
DRAWN = (
    "agent.entry=tests.e2e.agents:unpunctual",
    "reward.outcome=answered",
    "train.dynamic_sampling=3",
    "train.steps=4",
    "train.checkpoint_every=3",
    "train.samples_per_task=3",
    "algo.aggregation=token-mean",
)
TASKS, SAMPLES = 3, 3


@pytest.mark.parametrize("staleness", [0, 1])
def test_draws_repeat_and_resume_bit_for_bit(tmp_path: Path, staleness: int) -> None:
    one, other, resumed = (tmp_path / name for name in ("one", "other", "resumed"))
    settings = (*DRAWN, f"train.max_staleness={staleness}")
    run(one, *settings)
    run(other, *settings, "runner.concurrency=5")
    assert (other / "metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()
    lines = training_lines(one)
    assert max(line["draws/count"] for line in lines) > 1
    assert [line["rollout/staleness_max"] for line in lines] == [0.0, *[1.0 * staleness] * 2, 0.0]
    shutil.copytree(one, resumed)
    shutil.rmtree(resumed / "checkpoints" / "step-00000004")
    run(resumed, *settings, resume=True)
    assert (resumed / "metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()


def test_only_groups_with_several_outcomes_are_trained_on(tmp_path: Path) -> None:
    run(tmp_path, *DRAWN)
    rows = pd.concat([pd.read_parquet(part) for part in sorted((tmp_path / "transitions").iterdir())])
    kept = 0
    for line, (_, step) in zip(training_lines(tmp_path), rows.groupby("step"), strict=True):
        outcomes = step.groupby("task_id")["outcome"].nunique()
        informative = outcomes[outcomes > 1].index
        assert (step["loss_weight"] > 0).equals(step["task_id"].isin(informative))
        assert line["draws/groups"] == len(outcomes) >= TASKS
        assert line["draws/groups_kept"] == len(informative) <= TASKS
        assert line["draws/groups_left_out"] == len(outcomes) - len(informative)
        assert line["batch/rollouts_count"] == len(informative) * SAMPLES
        assert len(informative) == TASKS or line["draws/count"] == 3
        kept += len(informative)
    assert kept > 0
    assert (rows["loss_weight"] == 0).any()
