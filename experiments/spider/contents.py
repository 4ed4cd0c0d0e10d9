"""What a database holds: the distinct values of its columns, in an order that does not depend on the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from experiments.spider.layout import Schema

Value = str | int | float
MAX_VALUES = 200  # distinct values of one column; of more, the first that SQLite finds


def column_values(path: Path, schema: Schema) -> Mapping[tuple[str, str], tuple[Value, ...]]:
    """(table, column) -> its distinct values, texts and numbers each sorted; keys and NULL are no values."""
    keys = {*schema.primary_keys, *(own for own, _ in schema.foreign_keys)}
    found: dict[tuple[str, str], tuple[Value, ...]] = {}
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        for table in schema.tables:
            for column in schema.columns[table]:
                if (table, column) in keys:
                    continue
                rows = connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}" LIMIT {MAX_VALUES}').fetchall()
                values = {row[0] for row in rows if isinstance(row[0], str | int | float)}
                found[table, column] = tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))
    finally:
        connection.close()
    return found
