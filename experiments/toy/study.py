"""Tasks of the toy study: every word has a partner; the policy finds out which by reward alone.

Warm-up teaches only the form (answer with one of the partners, any of them); which one belongs to which word is left
to reinforcement learning, so a run that learns has a working circle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from lightning_jax.run.study import Demonstration, Study
from lightning_jax.types import Task, Trajectory

PARTNERS = {
    "salt": "pepper", "king": "queen", "sun": "moon", "cup": "saucer",
    "lock": "key", "bow": "arrow", "hand": "glove", "bread": "butter",
}  # fmt: skip


def answered(task: Task, trajectory: Trajectory) -> float:
    """Share of words whose partner was named."""
    wanted = task.reference["partners"]
    given = trajectory.outcome.output.get("answers", [])
    return sum(a == b for a, b in zip(given, wanted, strict=False)) / len(wanted)


def all_answered(task: Task, trajectory: Trajectory) -> float:
    """1 where every partner was named, else 0."""
    return float(answered(task, trajectory) == 1.0)


def load(config: Mapping[str, Any]) -> Study:
    """Build the study; `config` is the task group of the run's configuration."""
    tasks = [
        Task(
            task_id=f"{first}-{second}",
            input={"words": [first, second]},
            reference={"partners": [PARTNERS[first], PARTNERS[second]]},
            tags={"first": first},
        )
        for first, second in itertools.permutations(PARTNERS, 2)
    ]
    held_out = tasks[:: config.get("hold_out_every", 4)]
    demonstrations = [
        Demonstration(
            ({"role": "system", "content": "partner"}, {"role": "user", "content": word}), partner, "partner"
        )
        for word in PARTNERS
        for partner in PARTNERS.values()
    ]
    return Study(
        name="toy",
        metric="pair_accuracy",
        breakdown="first",
        train=[t for t in tasks if t not in held_out],
        validation=[],
        test=held_out,
        terms={"answered": answered, "all_answered": all_answered},
        demonstrations=demonstrations,
        corpus=[" ".join((*PARTNERS, *PARTNERS.values(), "partner"))] + [*PARTNERS, *PARTNERS.values(), "partner"] * 4,
    )
