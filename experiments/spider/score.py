"""Scores a Spider layout against itself, and this evaluator against recorded verdicts.

    python -m experiments.spider.score --root DIR [--oracle FILE] [--database-dir NAME]

Two questions before any training on a data set: does every gold query run and match itself, and does this evaluator
judge as the official one did? FILE is JSON lines with db_id, gold, pred and the official verdict `exec` (and
`exec_keep_distinct`, where recorded). Differences are listed on standard error; the last line of standard output is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from experiments.spider.evaluator import GoldError, execution_match
from experiments.spider.layout import Layout, load

_ORACLE_FIELDS = {"exec": False, "exec_keep_distinct": True}  # recorded verdict -> keep_distinct
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a run. A recorded pair agrees where all its recorded verdicts do."""

    gold_n: int = 0  # gold queries judged against themselves
    gold_ok: int = 0
    n: int = 0  # recorded pairs
    agree: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)


def score_gold(layout: Layout, console: Console) -> Report:
    """Judge each gold query of both splits against itself."""
    questions = [*layout.train, *layout.dev]
    differences: list[dict[str, Any]] = []
    for question in _tracked(questions, "gold against itself", console):
        where = {"split": question.split, "index": question.index, "db_id": question.db_id, "gold": question.query}
        try:
            verdict = execution_match(layout.databases(question.db_id), question.query, question.query)
        except GoldError as error:
            differences.append({**where, "reason": str(error)})
            continue
        if not verdict.match:
            differences.append({**where, "reason": f"{verdict.reason}: {verdict.message} on {verdict.database}"})
    return Report(len(questions), len(questions) - len(differences), differences=differences)


def score_oracle(layout: Layout, path: Path, console: Console) -> Report:
    """Judge each recorded pair and compare with the recorded verdicts."""
    differences: list[dict[str, Any]] = []
    pairs = list(_pairs(path))
    agree = 0
    for pair in _tracked(pairs, "recorded verdicts", console):
        found = [difference for name in _ORACLE_FIELDS if (difference := _difference(layout, pair, name)) is not None]
        agree += not found
        differences += found
    return Report(n=len(pairs), agree=agree, differences=differences)


def _difference(layout: Layout, pair: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The pair with our verdict, where it is not the one recorded under `name`."""
    if name not in pair:
        return None
    ours, reason = _judge(layout, pair, _ORACLE_FIELDS[name])
    return None if ours == bool(pair[name]) else {**pair, "verdict": name, "ours": ours, "reason": reason}


def _judge(layout: Layout, pair: dict[str, Any], keep_distinct: bool) -> tuple[bool | None, str]:
    databases = layout.databases(pair["db_id"])
    try:
        verdict = execution_match(databases, pair["gold"], pair["pred"], keep_distinct=keep_distinct)
    except GoldError as error:
        return None, str(error)
    return verdict.match, f"{verdict.reason} {verdict.message}".strip()


def _pairs(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        pair = json.loads(line)
        if not {"db_id", "gold", "pred", "exec"} <= pair.keys():
            raise ValueError(f"line {number} of {path} needs db_id, gold, pred and exec, it has {sorted(pair)}")
        yield pair


def _tracked(items: list[T], what: str, console: Console) -> Iterable[T]:
    return track(items, description=what, console=console, transient=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 where everything agrees, 1 where something differs, 2 where the data cannot be read."""
    parser = argparse.ArgumentParser(description="Score a Spider layout's gold queries and recorded verdicts.")
    parser.add_argument("--root", type=Path, required=True, help="folder with tables.json, dev.json, database/ ...")
    parser.add_argument("--oracle", type=Path, help="JSON lines of pairs with the official evaluator's verdicts")
    parser.add_argument("--database-dir", default="database", help="folder of the databases under ROOT")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        layout = load(options.root, database_dir=options.database_dir)
        gold = score_gold(layout, console)
        oracle = score_oracle(layout, options.oracle, console) if options.oracle else Report()
    except (FileNotFoundError, ValueError) as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        return 2
    differences = gold.differences + oracle.differences
    for difference in differences:
        console.print(json.dumps(difference, ensure_ascii=False), markup=False, highlight=False, soft_wrap=True)
    report = Report(gold.gold_n, gold.gold_ok, oracle.n, oracle.agree, differences)
    sys.stdout.write(json.dumps(asdict(report), ensure_ascii=False) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
