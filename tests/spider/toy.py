"""Small SQLite files for the tests of the Spider study."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"
SHARED = Path(os.environ.get("LIGHTNING_JAX_SHARED", Path(__file__).parents[2].parent / "shared")) / "data/spider"


def golden(name: str) -> dict[str, Any]:
    """A golden file's content."""
    content: dict[str, Any] = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return content


def build(path: Path, statements: Iterable[str]) -> Path:
    """A new SQLite file made by `statements`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript("\n".join(statements))
    connection.commit()
    connection.close()
    return path


def singers(path: Path, rows: Iterable[tuple[Any, ...]] = ((1, "Ann", 30, "FR"), (2, "Bob", 25, "US"))) -> Path:
    """A file with the table singer(id, name, age, country)."""
    build(path, ["CREATE TABLE singer(id INTEGER PRIMARY KEY, name TEXT, age INTEGER, country TEXT);"])
    connection = sqlite3.connect(path)
    connection.executemany("INSERT INTO singer VALUES(?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path
