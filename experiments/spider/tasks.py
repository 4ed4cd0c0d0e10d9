"""Turns a loaded Spider layout into tasks: what is demonstrated, trained on, validated on and tested on.

Invariant: no query of the validation split, in whatever wording, is demonstrated or trained on; the test split is dev.
Which question falls where depends on the seed and the question alone, not on its place in the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from experiments.spider.hardness import hardness
from experiments.spider.layout import Layout, Question, Schema
from lightning_jax.types import Task


@dataclass(frozen=True, slots=True)
class Parts:
    """The questions of a layout by what they are for."""

    demonstrations: tuple[Question, ...]  # shown with their answers in the supervised warm-up
    train: tuple[Question, ...]  # reinforcement learning; answers reach rewards only
    validation: tuple[Question, ...]  # out of Spider's train split, never trained on
    test: tuple[Question, ...]  # Spider's dev split


def part(
    layout: Layout, *, demonstrations: int, validation: int, seed: int = 0, eval_limit: int | None = None
) -> Parts:
    """Part the questions of `layout`.

    Args:
        demonstrations, validation: how many questions of Spider's train split go there; all others are for training.
        eval_limit: at most so many test questions (the same ones for every run of a seed); None for all.

    Raises ValueError where train has too few questions.
    """
    if demonstrations < 0 or validation < 0 or demonstrations + validation > len(layout.train):
        raise ValueError(
            f"{demonstrations} demonstrations and {validation} validation questions do not fit into the "
            f"{len(layout.train)} train questions of {layout.root}: ask for fewer"
        )
    held, rest = _take(_ordered(layout.train, seed), validation)
    shown, train = _take(rest, demonstrations)
    test = _ordered(layout.dev, seed)[:eval_limit]
    return Parts(tuple(shown), _as_listed(train), _as_listed(held), _as_listed(test))


def tasks(questions: Iterable[Question], layout: Layout) -> list[Task]:
    """One task per question, in the same order."""
    schemas = {db_id: compact_schema(schema) for db_id, schema in layout.schemas.items()}
    return [task(question, layout, schemas[question.db_id]) for question in questions]


def task(question: Question, layout: Layout, schema: str) -> Task:
    """The question as a task; `schema` is the text that prompts show."""
    databases = layout.databases(question.db_id)
    own = [path for path in databases if path.stem == question.db_id]
    return Task(
        task_id=f"spider-{question.split}-{question.index}",
        input={
            "question": question.question,
            "db_id": question.db_id,
            "schema": schema,
            "db_path": str((own or list(databases))[0].resolve()),
        },
        reference={"query": question.query, "databases": [str(path.resolve()) for path in databases]},
        tags={"hardness": hardness(question.query), "db": question.db_id},
    )


def compact_schema(schema: Schema) -> str:
    """The tables in as few tokens as tell all: `singer ( singer_id name ) concert ( concert_id singer_id > singer )`.

    A foreign key names the table it points to, and the column where that is called otherwise. Every name stands behind
    a space, because to most tokenizers a word with its space is another token than the word without.
    """
    targets = dict(schema.foreign_keys)
    tables = []
    for table in schema.tables:
        columns = []
        for column in schema.columns[table]:
            target = targets.get((table, column))
            columns.append(column if target is None else f"{column} > {_target(column, target)}")
        tables.append(f"{table} ( {' '.join(columns)} )")
    return " ".join(tables)


def _target(column: str, target: tuple[str, str]) -> str:
    table, name = target
    return table if name.lower() == column.lower() else f"{table} . {name}"


def _ordered(questions: Iterable[Question], seed: int) -> list[Question]:
    """In an order that the seed and the texts decide; the wordings of one query stand together."""

    def place(*texts: str) -> bytes:
        return hashlib.blake2b("\x1f".join((str(seed), *texts)).encode(), digest_size=8).digest()

    return sorted(
        questions,
        key=lambda q: (place(q.db_id, q.query), q.db_id, q.query, place(q.db_id, q.query, q.question), q.index),
    )


def _take(ordered: list[Question], size: int) -> tuple[list[Question], list[Question]]:
    """The first queries of the order that fill `size` questions with all their wordings, and the rest.

    Where no whole query fills the last places they are left empty.
    """
    groups: dict[tuple[str, str], list[Question]] = {}
    for question in ordered:
        groups.setdefault((question.db_id, question.query), []).append(question)
    taken: list[Question] = []
    rest: list[Question] = []
    for group in groups.values():
        (taken if len(taken) + len(group) <= size else rest).extend(group)
    return taken, rest


def _as_listed(questions: Iterable[Question]) -> tuple[Question, ...]:
    return tuple(sorted(questions, key=lambda question: (question.split, question.index)))
