"""Studies, rewards and models given as arguments of a program instead of files: what `LightningServer` is handed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_jax.presets import presets_of, settings
from lightning_jax.rewards.terms import Term, generic
from lightning_jax.run.randomness import derive
from lightning_jax.run.study import Study
from lightning_jax.types import Task

Choice = str | Mapping[str, Any]  # a preset's name, or settings
REPORTED = {"form": "weighted", "outcome": "reported", "terms": {"reported": 1.0}}  # what clients report is the reward
MAX_CALLS = 8  # of the generic term `efficiency`; bring a term of your own for another


def reward_of(
    reward: Callable[..., float] | Choice | None, terms: Mapping[str, Term]
) -> tuple[dict[str, Term], dict[str, Any]]:
    """The known terms, and the composition over them as plain data."""
    known: dict[str, Term] = {**generic(MAX_CALLS), **terms}
    if reward is None:
        return known, dict(REPORTED)
    if isinstance(reward, str | Mapping):
        return known, settings("reward", reward)
    name = name_of(reward).rpartition(":")[2]
    return {**known, name: reward}, {"outcome": name, "terms": {name: 1.0}}


def study_of(
    tasks: Study | Sequence[Task | Mapping[str, Any]] | None,
    evaluation: Sequence[Task | Mapping[str, Any]],
    terms: Mapping[str, Term],
) -> Study | None:
    if tasks is None:
        return None
    if isinstance(tasks, Study):
        fields = {name: getattr(tasks, name) for name in Study.__slots__}
        return Study(**{**fields, "terms": {**terms, **tasks.terms}})
    if not tasks:
        raise ValueError("tasks is empty: give at least one, or None to serve without training")
    train, test = [task_of(t) for t in tasks], [task_of(t) for t in evaluation]
    return Study(name="tasks", metric="accuracy", breakdown="kind", train=train, validation=[], test=test, terms=terms)


def task_of(task: Task | Mapping[str, Any]) -> Task:
    """A task; only an input names itself by its content."""
    if isinstance(task, Task):
        return task
    return Task(f"task-{derive(0, json.dumps(dict(task), sort_keys=True)):x}", dict(task))


def corpus_of(corpus: Sequence[str] | None, study: Study | None) -> Sequence[str]:
    if corpus is not None or study is None:
        return corpus or ()
    return study.corpus or [json.dumps(dict(task.input), ensure_ascii=False) for task in study.train]


def tasks_digest(study: Study) -> str:
    """Names the tasks, so that a run is not resumed on others."""
    content = [[t.task_id, dict(t.input), dict(t.reference)] for t in (*study.train, *study.test)]
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def name_of(function: Any) -> str:
    kind = type(function)
    return f"{getattr(function, '__module__', kind.__module__)}:{getattr(function, '__qualname__', kind.__qualname__)}"


def model_of(base_model: Choice) -> dict[str, Any]:
    """The model section: a preset, settings, or the place of a published model."""
    if not isinstance(base_model, str) or base_model in presets_of("model"):
        return settings("model", base_model)
    if not Path(base_model).expanduser().exists():
        raise ValueError(
            f"base_model={base_model!r} is no HF directory, no .gguf file and no preset "
            f"({', '.join(presets_of('model'))})"
        )
    return {**settings("model", "llama_hf"), "name": Path(base_model).stem, "path": base_model}
