"""Rows for a domain: deterministic, foreign keys valid, and shaped so that wrong queries rarely look right.

Some parents stay without children (so NOT IN has an answer) and children crowd on a few parents (so "the most" is one
parent). Quantities are distinct where their range allows, which keeps ORDER BY free of ties.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from experiments.spider.generate.draws import Draws
from experiments.spider.generate.schema import Column, Domain, Table

Row = tuple[int | float | str, ...]
CHILDLESS = 0.25  # share of parents that no child links to


def rows_of(domain: Domain, seed: int) -> dict[str, list[Row]]:
    """The rows of every table of `domain`, by table name."""
    filled: dict[str, list[Row]] = {}
    for table in domain.tables:
        draws = Draws(seed, "rows", domain.name, table.name)
        columns = [_column(column, table, domain, draws) for column in table.columns]
        filled[table.name] = list(zip(*columns, strict=True))
    return filled


def _column(column: Column, table: Table, domain: Domain, draws: Draws) -> list[int] | list[float] | list[str]:
    n = table.rows
    if column.kind == "key":
        return list(range(1, n + 1))
    if column.kind == "link":
        return _links(domain.table(column.target).rows, n, draws)
    if column.kind == "label":
        return draws.sample(column.values, n)
    if column.kind == "category":
        weights = [1.0 / (1 + 0.35 * rank) for rank in range(len(column.values))]
        values = draws.shuffled(column.values)
        return [draws.weighted(values, weights) for _ in range(n)]
    return _numbers(column, n, draws)


def _links(parents: int, n: int, draws: Draws) -> list[int]:
    keys = draws.shuffled(range(1, parents + 1))[: round(parents * (1 - CHILDLESS))]
    weights = [1.0 / (1 + rank) ** 0.6 for rank in range(len(keys))]
    return [draws.weighted(keys, weights) for _ in range(n)]


def _numbers(column: Column, n: int, draws: Draws) -> list[int] | list[float]:
    steps = round((column.high - column.low) / column.step) + 1
    ticks = draws.sample(range(steps), n) if steps >= n else [draws.index(steps) for _ in range(n)]
    if column.type == "REAL":
        return [round(column.low + tick * column.step, 1) for tick in ticks]
    return [int(column.low + tick * column.step) for tick in ticks]


def create_statements(domain: Domain) -> list[str]:
    """One CREATE TABLE per table, with primary and foreign keys."""
    statements = []
    for table in domain.tables:
        parts = [f"{column.name} {column.type}" for column in table.columns]
        parts[0] += " PRIMARY KEY"
        parts += [
            f"FOREIGN KEY ({column.name}) REFERENCES {column.target}({domain.table(column.target).key.name})"
            for column in table.kinds("link")
        ]
        statements.append(f"CREATE TABLE {table.name} ({', '.join(parts)})")
    return statements


def fill(connection: sqlite3.Connection, domain: Domain, rows: dict[str, list[Row]]) -> None:
    """Create the tables of `domain` in an empty database and insert `rows`."""
    with connection:
        for statement in create_statements(domain):
            connection.execute(statement)
        for table in domain.tables:
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows[table.name])


def write_database(path: Path, domain: Domain, rows: dict[str, list[Row]]) -> None:
    """Write one SQLite file, which must not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    try:
        fill(connection, domain, rows)
    finally:
        connection.close()
