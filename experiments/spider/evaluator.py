"""Execution match: whether a predicted query gives what the gold query gives, as Spider's official evaluator judges.

The official metric (Zhong, Yu and Klein, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites", EMNLP 2020)
runs both queries on *every* database file of the question's folder; all must agree. Results are bags of rows, ordered
iff "order by" stands anywhere in the gold text; columns may come in any order; values are equal when Python's == says
so (30 == 30.0, "30" != 30). Before that DISTINCT is taken from both queries (unless `keep_distinct`), "> =", "< =" and
"! =" are closed up and YEAR(CURDATE()) becomes 2020.

Two verdicts differ on purpose, because the official evaluator executes what a model writes unprotected: text with
more than one statement never matches (there, all but the first is dropped), and neither does anything but a SELECT.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.spider import execution
from experiments.spider.execution import Row
from experiments.spider.lexer import remove_word

Reason = Literal["match", "rows_differ", "invalid", "forbidden", "timeout", "too_large"]

_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_SPLIT_OPERATORS = (("> =", ">="), ("< =", "<="), ("! =", "!="))
_GOLD_TIMEOUT_S = 60.0
_GOLD_MAX_ROWS = 200_000
_GOLD_MAX_STEPS = 2_000_000_000
_SEARCH_LIMIT = 100_000  # nodes; a search this long means dozens of columns with the same values


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on one predicted query."""

    match: bool
    reason: Reason  # "match", or what ended the comparison on the first database that disagrees
    database: str = ""  # that database's path; "" on a match
    message: str = ""  # SQLite's words where the predicted query failed


class GoldError(ValueError):
    """The gold query itself cannot be executed: the data is broken, and no prediction can be judged against it."""


def execution_match(
    databases: Sequence[str | os.PathLike[str]],
    gold: str,
    pred: str,
    *,
    keep_distinct: bool = False,
    timeout_s: float = 1.0,
    max_steps: int = execution.MAX_STEPS,
) -> Verdict:
    """Judge `pred` against `gold` on all `databases` (the *.sqlite files of one database's folder).

    `timeout_s` and `max_steps` bound the predicted query per database, as in `execution.run`. Raises ValueError for
    an empty `databases`, GoldError where gold fails, FileNotFoundError where a database is missing.
    """
    if not databases:
        raise ValueError("no database to execute the queries on; pass every *.sqlite file of the question's database")
    gold, pred = _prepare(gold, keep_distinct), _prepare(pred, keep_distinct)
    ordered = "order by" in gold.lower()
    gold, pred = _CURRENT_YEAR.sub("2020", gold), _CURRENT_YEAR.sub("2020", pred)
    for database in databases:
        expected = execution.run(
            database, gold, timeout_s=_GOLD_TIMEOUT_S, max_rows=_GOLD_MAX_ROWS, max_steps=_GOLD_MAX_STEPS
        )
        if not expected.ok:
            raise GoldError(f"gold query fails on {database}: {expected.error}: {expected.message}: {gold}")
        # One row more than gold has settles the matter, so no more are fetched.
        got = execution.run(database, pred, timeout_s=timeout_s, max_rows=len(expected.rows), max_steps=max_steps)
        if got.error is not None and got.error != "too_many_rows":
            return Verdict(False, got.error, os.fspath(database), got.message)
        if not got.ok or not same_rows(expected.rows, got.rows, ordered=ordered):
            return Verdict(False, "rows_differ", os.fspath(database))
    return Verdict(True, "match")


def _prepare(sql: str, keep_distinct: bool) -> str:
    for written, meant in _SPLIT_OPERATORS:
        sql = sql.replace(written, meant)
    return sql if keep_distinct else remove_word(sql, "distinct")


def same_rows(left: Sequence[Row], right: Sequence[Row], *, ordered: bool) -> bool:
    """Whether some order of `right`'s columns makes it `left`: as bags of rows, or row by row where `ordered`."""
    if not left and not right:
        return True
    if len(left) != len(right) or len(left[0]) != len(right[0]):
        return False
    if not _rows_agree_as_bags(left, right, ordered):
        return False
    if len(left[0]) == 1:
        return list(left) == list(right) if ordered else Counter(left) == Counter(right)
    left_columns, right_columns = list(zip(*left, strict=True)), list(zip(*right, strict=True))
    if ordered:  # row by row means column by column, so equal columns can be paired in any way
        return Counter(left_columns) == Counter(right_columns)
    return _some_permutation(left_columns, right_columns)


def _rows_agree_as_bags(left: Sequence[Row], right: Sequence[Row], ordered: bool) -> bool:
    """The official quick rejection: compare rows with their values sorted by text and type.

    It is part of the verdict, no mere shortcut: 30 and 30.0 sort differently beside some texts, so a few results that
    are equal value by value are told apart here.
    """
    left_rows, right_rows = [_sorted_row(row) for row in left], [_sorted_row(row) for row in right]
    return left_rows == right_rows if ordered else set(left_rows) == set(right_rows)


def _sorted_row(row: Row) -> Row:
    return tuple(sorted(row, key=lambda value: str(value) + str(type(value))))


def _some_permutation(left: list[Row], right: list[Row]) -> bool:
    """Whether the columns `right` can be ordered so that the bags of rows are equal. Depth-first, column by column.

    A right column is tried only where its bag of values is the left column's, equal columns only once, and a prefix is
    kept only while the bags of partial rows agree: in practice the first path succeeds or dies at once.
    """
    left_bags, right_bags = [Counter(column) for column in left], [Counter(column) for column in right]
    candidates = [[j for j, bag in enumerate(right_bags) if bag == wanted] for wanted in left_bags]
    # Columns with the fewest partners first: they settle the most.
    order = sorted(range(len(left)), key=lambda i: (len(candidates[i]), -len(left_bags[i])))
    prefixes = [Counter(zip(*(left[i] for i in order[: depth + 1]), strict=True)) for depth in range(len(order))]
    nodes = 0

    def extend(chosen: tuple[int, ...]) -> bool:
        nonlocal nodes
        if len(chosen) == len(order):
            return True
        tried: set[Row] = set()
        for j in candidates[order[len(chosen)]]:
            if j in chosen or right[j] in tried:
                continue
            tried.add(right[j])
            nodes += 1
            if nodes > _SEARCH_LIMIT:
                return False
            if Counter(zip(*(right[c] for c in (*chosen, j)), strict=True)) == prefixes[len(chosen)] and extend(
                (*chosen, j)
            ):
                return True
        return False

    return extend(())
