"""One configuration and seed, one result: whatever order agents finish in, and wherever they run."""

from __future__ import annotations

from pathlib import Path

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
