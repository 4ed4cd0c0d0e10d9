"""The reward terms of the Spider study.

A task's reference holds `query` (gold SQL) and `databases` (paths of the database's *.sqlite files); the agent's output
holds `query` (its final SQL) and `queries` (all it executed, in order). Output of another shape is worth 0. The same
question is judged many times with the same answer, so judgements are kept; a database file that changes is another key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from experiments.spider import execution
from experiments.spider.evaluator import GoldError, execution_match
from lightning_jax.rewards.terms import Term, Unscorable, efficiency
from lightning_jax.types import Task, Trajectory

# The step budget of `execution` should end a runaway query, not the clock: rewards then repeat on a busy machine.
_TIMEOUT_S = 5.0
_JUDGEMENTS = 65_536
FileState = tuple[str, int, int]  # path, modification time in ns, bytes


def terms(*, max_calls: int, keep_distinct: bool = False) -> Mapping[str, Term]:
    """The study's terms by name: execution, syntax, process, efficiency, all in [0, 1].

    `max_calls` is where efficiency reaches 0; `keep_distinct` judges DISTINCT instead of removing it.
    """

    def execution_term(task: Task, trajectory: Trajectory) -> float:
        return execution_accuracy(task, trajectory, keep_distinct=keep_distinct)

    return {
        "execution": execution_term,
        "syntax": syntax,
        "process": process,
        "efficiency": efficiency(max_calls),
    }


def execution_accuracy(task: Task, trajectory: Trajectory, *, keep_distinct: bool = False) -> float:
    """1 where the final query gives what the gold query gives on every database, else 0.

    Raises Unscorable where the gold query itself fails: no answer can be judged then.
    """
    query = _text(trajectory.outcome.output.get("query"))
    if query is None:
        return 0.0
    try:
        return float(_matches(_databases(task), task.reference["query"], query, keep_distinct))
    except GoldError as error:
        raise Unscorable(f"task {task.task_id}: {error}") from error


def syntax(task: Task, trajectory: Trajectory) -> float:
    """1 where SQLite can EXPLAIN the final query on the database's schema, else 0."""
    query = _text(trajectory.outcome.output.get("query"))
    return 0.0 if query is None else float(_is_valid(_databases(task)[0], query))


def process(task: Task, trajectory: Trajectory) -> float:
    """The share of the queries executed on the way that were valid SQL for the schema; 0 where none was executed."""
    queries = trajectory.outcome.output.get("queries")
    if not isinstance(queries, list | tuple) or not queries:
        return 0.0
    database = _databases(task)[0]
    texts = [_text(query) for query in queries]
    return sum(text is not None and _is_valid(database, text) for text in texts) / len(texts)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _databases(task: Task) -> tuple[FileState, ...]:
    paths = task.reference.get("databases")
    if not paths:
        raise ValueError(f"task {task.task_id} names no database; its reference needs `databases`, a list of paths")
    return tuple(_state(str(path)) for path in paths)


def _state(path: str) -> FileState:
    state = os.stat(path)
    return path, state.st_mtime_ns, state.st_size


@lru_cache(maxsize=_JUDGEMENTS)
def _matches(databases: tuple[FileState, ...], gold: str, pred: str, keep_distinct: bool) -> bool:
    paths = [path for path, _, _ in databases]
    return execution_match(paths, gold, pred, keep_distinct=keep_distinct, timeout_s=_TIMEOUT_S).match


@lru_cache(maxsize=_JUDGEMENTS)
def _is_valid(database: FileState, query: str) -> bool:
    return execution.explain(database[0], query).ok
