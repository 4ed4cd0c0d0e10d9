"""Variations of a demonstration: the same question about other things, for models that start from nothing.

From a few hundred labelled examples a small model learns databases by heart and copies nothing. Here names of tables
and columns, and the values of conditions, are exchanged consistently in question, schema, queries and answer, so that
only reading the prompt gives the right answer. No further question is labelled: each variation comes from one
demonstration. Invariant: a name or value is exchanged only where the question itself spells it, or the answer does
without it; what is asked for by a synonym ("older than") keeps its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.spider.contents import Value, column_values
from experiments.spider.generate.draws import Draws
from experiments.spider.layout import Layout, Question, Schema
from lightning_jax.run.study import Demonstration

_NUMBER = re.compile(r"(?<![\w'.])\d+(?:\.\d+)?(?![\w'])")
_QUOTED = re.compile(r"'([^']+)'")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Pools:
    """What may be exchanged for what."""

    columns: tuple[str, ...]  # one-word names of columns that are no keys, of all databases
    tables: tuple[str, ...]
    values: Mapping[str, Mapping[str, tuple[str, ...]]]  # database -> text value -> values of the same column
    numbers: tuple[str, ...]  # those that questions mention


def pools(layout: Layout, questions: Sequence[Question]) -> Pools:
    """Pools from the databases and texts of `questions` (their answers are not looked at)."""
    databases = sorted({question.db_id for question in questions})
    schemas = [layout.schemas[name] for name in databases]
    return Pools(
        columns=tuple(sorted({name for schema in schemas for name in _plain_columns(schema)})),
        tables=tuple(sorted({table for schema in schemas for table in schema.tables})),
        values={name: _values(column_values(layout.databases(name)[0], layout.schemas[name])) for name in databases},
        numbers=tuple(sorted({number for q in questions for number in _NUMBER.findall(q.question)})),
    )


def vary(demonstration: Demonstration, question: Question, schema: Schema, known: Pools, draws: Draws) -> Demonstration:
    """One variation; the demonstration itself where nothing can be exchanged."""
    told = str(demonstration.messages[-1]["content"])
    exchange = _names(question, schema, known, draws) | _literals(question, known, draws)
    if not exchange:
        return demonstration
    keys = sorted(exchange, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(k) if k[0] == "'" else _whole_word(k) for k in keys))

    def exchanged(text: str) -> str:
        return pattern.sub(lambda match: exchange[match[0]], text)

    last = {**demonstration.messages[-1], "content": exchanged(told)}
    return replace(demonstration, messages=(*demonstration.messages[:-1], last), answer=exchanged(demonstration.answer))


def _names(question: Question, schema: Schema, known: Pools, draws: Draws) -> dict[str, str]:
    """Old name -> new name, for about half of the tables and columns."""
    asked, queried = _words(question.question), _words(question.query)
    taken = {*schema.tables, *(c for columns in schema.columns.values() for c in columns), *asked, *queried}
    exchange: dict[str, str] = {}

    def offer(name: str, spelt: bool, choices: Sequence[str]) -> str | None:
        if not draws.chance(0.5) or (name in queried) != spelt:
            return None
        new = draws.choice(choices)
        if new in taken or singular(new) in taken:
            return None
        taken.add(new)
        return new

    for table in schema.tables:
        if f"{singular(table)} name" in question.question.lower():
            continue  # "team name" asks for a column that keeps its name
        new = offer(table, table in asked or singular(table) in asked, known.tables)
        if new is not None:
            exchange |= {table: new, singular(table): singular(new)}
    for column in dict.fromkeys(_plain_columns(schema)):
        new = offer(column, column in asked, known.columns)
        if new is not None:
            exchange[column] = new
    return exchange


def _literals(question: Question, known: Pools, draws: Draws) -> dict[str, str]:
    """Old literal -> new literal, for those that question and query share; {} where two would become one."""
    exchange: dict[str, str] = {}
    for value in sorted(set(_QUOTED.findall(question.query)) & set(_QUOTED.findall(question.question))):
        choices = known.values.get(question.db_id, {}).get(value)
        if choices:
            exchange[f"'{value}'"] = f"'{draws.choice(choices)}'"
    numbers = sorted(set(_NUMBER.findall(question.query)) & set(_NUMBER.findall(question.question)), key=float)
    drawn = [draws.choice(_like(number, known.numbers) or [number]) for number in numbers]
    exchange |= dict(zip(numbers, sorted(drawn, key=float), strict=True))  # in order: BETWEEN stays BETWEEN
    return exchange if len(set(exchange.values())) == len(exchange) else {}


def _whole_word(name: str) -> str:
    return rf"(?<![\w'.]){re.escape(name)}(?![\w'])"


def singular(table: str) -> str:
    """The noun of one row of a table named in the plural: dishes -> dish."""
    if table.endswith(("shes", "ches", "sses", "xes")):
        return table[:-2]
    if table.endswith("ies"):
        return table[:-3] + "y"
    return table[:-1] if table.endswith("s") and not table.endswith("ss") else table


def _like(number: str, others: Iterable[str]) -> list[str]:
    """Numbers of the same length; years stand for years only."""
    year = re.fullmatch(r"(19|20)\d\d", number) is not None
    fitting = [n for n in others if len(n) == len(number) and (re.fullmatch(r"(19|20)\d\d", n) is not None) == year]
    return [n for n in fitting if len(number) > 1 or n != "0"]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_QUOTED.sub("", text)))


def _plain_columns(schema: Schema) -> list[str]:
    keys = {column for _, column in schema.primary_keys} | {own[1] for own, _ in schema.foreign_keys}
    return [c for columns in schema.columns.values() for c in columns if c.isalpha() and c not in keys]


def _values(columns: Mapping[tuple[str, str], Sequence[Value]]) -> dict[str, tuple[str, ...]]:
    """Text value -> the text values of the columns it stands in."""
    found: dict[str, set[str]] = {}
    for values in columns.values():
        texts = {value for value in values if isinstance(value, str) and "'" not in value}
        for text in texts:
            found.setdefault(text, set()).update(texts)
    return {text: tuple(sorted(others)) for text, others in found.items()}
