"""What a study brings: tasks, how their answers are judged, demonstrations, names. The loop knows no more of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_jax.types import Task, Trajectory

Term = Callable[[Task, Trajectory], float]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One supervised example: a conversation and the answer to it."""

    messages: tuple[Mapping[str, Any], ...]  # as an agent would send them
    answer: str
    role: str = ""  # which of the agent's nodes it is for


@dataclass(frozen=True, slots=True)
class Study:
    """A task set with its judge."""

    name: str
    metric: str  # name of the exact task metric in summaries, e.g. "execution_accuracy"
    breakdown: str  # task tag that evaluations are split by, e.g. "hardness"
    train: Sequence[Task]  # rollouts are drawn from these; their references reach rewards only
    validation: Sequence[Task]  # never trained on; for choices made during development
    test: Sequence[Task]  # held out; evaluated before and after
    terms: Mapping[str, Term]  # reward terms by name
    agents: Mapping[str, str] = field(default_factory=dict)  # agent name → regex on the system prompt, first match wins
    demonstrations: Sequence[Demonstration] = ()
    corpus: Sequence[str] = field(default_factory=tuple)  # texts a tokenizer may be trained on; no held-out answers

    def task_index(self) -> dict[str, Task]:
        """Tasks of all splits by id; ValueError where an id stands for two tasks."""
        index: dict[str, Task] = {}
        for task in (*self.train, *self.validation, *self.test):
            if index.setdefault(task.task_id, task) is not task:
                raise ValueError(f"study {self.name}: two tasks share the id {task.task_id!r}")
        return index
