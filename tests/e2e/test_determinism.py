"""One configuration and seed, one result: whatever order agents finish in, and wherever they run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_jax.run.ahead import check_staleness
from tests.credit.samples import trajectory
from tests.e2e.toy import run, training_lines

UNPUNCTUAL = ("agent.entry=tests.e2e.agents:unpunctual", "train.steps=2")


def test_metrics_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    one, other, processes, seeded = (tmp_path / name for name in ("one", "other", "processes", "seeded"))
    run(one, *UNPUNCTUAL)
    run(other, *UNPUNCTUAL, "runner.concurrency=5")
    run(processes, *UNPUNCTUAL, "runner=processes", "runner.processes=2", "runner.concurrency=4")
    assert len(training_lines(one)) == 2
    expected = (one / "metrics.jsonl").read_bytes()
    assert (other / "metrics.jsonl").read_bytes() == expected
    assert (processes / "metrics.jsonl").read_bytes() == expected
    run(seeded, *UNPUNCTUAL, "seed=1", "train.steps=1")
    assert (seeded / "metrics.jsonl").read_bytes().splitlines()[1] != expected.splitlines()[1]


AHEAD = ("train.max_staleness=1", "train.steps=5", "train.checkpoint_every=3")


def test_sampling_ahead_is_one_version_behind_and_repeats(tmp_path: Path) -> None:
    one, other, resumed = (tmp_path / name for name in ("one", "other", "resumed"))
    run(one, *UNPUNCTUAL, *AHEAD)
    run(other, *UNPUNCTUAL, *AHEAD, "runner.concurrency=5")
    assert (other / "metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()
    # steps 0 and 3 follow no update: the first, and the one after a checkpoint
    assert [line["rollout/staleness_max"] for line in training_lines(one)] == [0.0, 1.0, 1.0, 0.0, 1.0]
    shutil.copytree(one, resumed)
    for checkpoint in (resumed / "checkpoints").glob("step-*5"):
        shutil.rmtree(checkpoint)
    run(resumed, *UNPUNCTUAL, *AHEAD, resume=True)
    assert (resumed / "metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()


def test_a_call_older_than_the_bound_ends_the_run() -> None:
    old = replace(trajectory(1).transitions[0], policy_version=3)
    one = replace(trajectory(1), transitions=(old,))
    assert check_staleness([one], version=4, allowed=1) == 1
    with pytest.raises(RuntimeError, match=r"version 3, 2 behind version 5.*max_staleness=1"):
        check_staleness([one], version=5, allowed=1)
