"""Tasks of the toy study: every word has a partner; the policy finds out which by reward alone.

Warm-up teaches the form and a few candidates for each word, all equally likely; which of them is the partner is left to
reinforcement learning, so a run that learns has a working circle. (Candidates that were the same for all words would
teach a model to ignore the word, and a policy that ignores its input has nothing for reinforcement learning to find.)
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
    partners = list(PARTNERS.values())
    demonstrations = [
        Demonstration(
            ({"role": "system", "content": "partner"}, {"role": "user", "content": word}),
            partners[(place + offset) % len(partners)],
            "partner",
        )
        for place, word in enumerate(PARTNERS)
        for offset in range(config.get("candidates", 4))
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
