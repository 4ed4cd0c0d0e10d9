"""Draws the questions of one database and parts them into train and dev.

Every query is run: one that finds nothing or a NULL, sorts by tied values or is not told from its near misses is drawn
again. A query text stands in at most `WORDINGS` wordings, and all wordings of one query fall on the same side of the
split.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.spider.generate.draws import Draws
from experiments.spider.generate.near_misses import indistinct
from experiments.spider.generate.rows import Row, fill
from experiments.spider.generate.scene import Candidate, NoFit, Scene, Template
from experiments.spider.generate.schema import Domain
from experiments.spider.generate.templates_easy import EASY
from experiments.spider.generate.templates_extra import EXTRA
from experiments.spider.generate.templates_hard import HARD
from experiments.spider.generate.templates_medium import MEDIUM
from experiments.spider.hardness import LEVELS, hardness

SHARES = {"easy": 0.30, "medium": 0.35, "hard": 0.20, "extra": 0.15}
WORDINGS = 2
PATIENCE = 400  # draws per question wanted before the database counts as exhausted
TEMPLATES: Mapping[str, Mapping[Template, int]] = {"easy": EASY, "medium": MEDIUM, "hard": HARD, "extra": EXTRA}


@dataclass(frozen=True)
class Asked:
    """One question of one database."""

    question: str
    query: str
    level: str


def shares(total: int) -> dict[str, int]:
    """`total` questions by level; the numbers add up to it (largest remainder)."""
    exact = {level: total * share for level, share in SHARES.items()}
    counts = {level: int(value) for level, value in exact.items()}
    by_remainder = sorted(LEVELS, key=lambda level: counts[level] - exact[level])
    for level in by_remainder[: total - sum(counts.values())]:
        counts[level] += 1
    return counts


def ask(domain: Domain, rows: Mapping[str, list[Row]], seed: int, total: int) -> dict[str, list[Asked]]:
    """`total` different questions about one database, by level."""
    connection = sqlite3.connect(":memory:")
    try:
        fill(connection, domain, dict(rows))
        scene = Scene(domain, dict(rows), Draws(seed, "questions", domain.name))
        return _fill_levels(scene, connection, shares(total))
    finally:
        connection.close()


def _fill_levels(scene: Scene, connection: sqlite3.Connection, wanted: dict[str, int]) -> dict[str, list[Asked]]:
    found: dict[str, list[Asked]] = {level: [] for level in LEVELS}
    texts: set[str] = set()
    wordings: dict[str, int] = {}
    for source in LEVELS:
        templates, weights = list(TEMPLATES[source]), list(TEMPLATES[source].values())
        patience = PATIENCE * wanted[source]
        while len(found[source]) < wanted[source]:
            patience -= 1
            if patience < 0:
                raise ValueError(
                    f"{scene.domain.name} gives only {len(found[source])} of {wanted[source]} {source} questions: "
                    "ask for fewer or give its tables more columns"
                )
            try:
                candidate = scene.draws.weighted(templates, weights)(scene)
            except NoFit:
                continue
            query = candidate.query
            if candidate.question in texts or wordings.get(query, 0) >= WORDINGS or not telling(connection, candidate):
                continue
            level = hardness(query)
            if len(found[level]) >= wanted[level]:
                continue
            texts.add(candidate.question)
            wordings[query] = wordings.get(query, 0) + 1
            found[level].append(Asked(candidate.question, query, level))
    return found


def telling(connection: sqlite3.Connection, candidate: Candidate) -> bool:
    """Whether the query has an answer that a wrong query would hardly give: rows, no NULL, no ties in its order,
    other rows than its near misses.
    """
    rows = connection.execute(candidate.query).fetchall()
    if not rows or any(value is None for row in rows for value in row) or rows == [(0,)]:
        return False
    if candidate.order:
        keys = connection.execute(candidate.order).fetchall()
        if len(keys) < 2 or len(keys) != len(set(keys)):
            return False
    return not indistinct(connection, candidate.query, rows)


def part(found: Mapping[str, list[Asked]], dev: int, draws: Draws) -> tuple[list[Asked], list[Asked]]:
    """Train and dev questions, `dev` of the latter in the shares of the levels; no query text on both sides."""
    train: list[Asked] = []
    held: list[Asked] = []
    for level, count in shares(dev).items():
        queries = draws.shuffled(sorted({asked.query for asked in found[level]}))
        sizes = {query: sum(asked.query == query for asked in found[level]) for query in queries}
        chosen: set[str] = set()
        for query in queries:
            if sum(sizes[taken] for taken in chosen) + sizes[query] <= count:
                chosen.add(query)
        held += [asked for asked in found[level] if asked.query in chosen]
        train += [asked for asked in found[level] if asked.query not in chosen]
    return draws.shuffled(train), draws.shuffled(held)
