"""Held-out evaluation through the whole circle: the agent itself solves each task once, the exact metric judges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_jax.types import Score, Task, Trajectory

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Judged:
    """One task's evaluation."""

    task: Task
    trajectory: Trajectory
    score: Score

    @property
    def correct(self) -> bool:
        """The exact metric, not the shaped reward."""
        return self.score.valid and self.score.outcome >= 1.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The judged tasks of one split at one step."""

    step: int
    split: str
    judged: tuple[Judged, ...]

    @property
    def accuracy(self) -> float:
        """Share of tasks judged right; an attempt lost to infrastructure counts as not right, and is reported."""
        return sum(j.correct for j in self.judged) / max(1, len(self.judged))

    @property
    def lost(self) -> int:
        """Attempts that infrastructure lost."""
        return sum(not j.score.valid for j in self.judged)

    def summary(self, metric: str, breakdown: str) -> dict[str, Any]:
        """What summary.json holds of it."""
        levels: dict[str, list[bool]] = {}
        for item in self.judged:
            levels.setdefault(item.task.tags.get(breakdown, "all"), []).append(item.correct)
        return {
            metric: self.accuracy,
            "n": len(self.judged),
            "ci95": list(wilson(sum(j.correct for j in self.judged), len(self.judged))),
            f"by_{breakdown}": {
                level: {metric: sum(v) / len(v), "n": len(v), "ci95": list(wilson(sum(v), len(v)))}
                for level, v in levels.items()
            },
            "lost": self.lost,
        }

    def rows(self, breakdown: str) -> list[dict[str, Any]]:
        """One row a task, for evaluations.parquet."""
        return [
            {
                "step": self.step,
                "split": self.split,
                "task_id": j.task.task_id,
                breakdown: j.task.tags.get(breakdown, ""),
                "db": j.task.tags.get("db", ""),
                "correct": j.correct,
                "score": j.score.total,
                "query": str(j.trajectory.outcome.output.get("query", "")),
                "calls": len(j.trajectory.transitions),
                "status": j.trajectory.outcome.status,
            }
            for j in self.judged
        ]


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95% score interval of a binomial share (Wilson 1927): sane at 0 and 1, where the normal one has no width."""
    if n == 0:
        return (0.0, 1.0)
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return (max(0.0, centre - half), min(1.0, centre + half))


def judge(
    trajectories: Sequence[Trajectory], tasks: Mapping[str, Task], scores: Sequence[Score], *, step: int, split: str
) -> Evaluation:
    """Pair trajectories with their tasks and scores."""
    judged = tuple(Judged(tasks[t.task_id], t, s) for t, s in zip(trajectories, scores, strict=True))
    return Evaluation(step, split, judged)
