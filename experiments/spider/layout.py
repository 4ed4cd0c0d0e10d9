"""Reads a Spider-style data set from the folder it was unpacked to, unchanged.

    ROOT/tables.json                        schemas of all databases
    ROOT/train_spider.json                  questions to train on
    ROOT/train_others.json                  more of them; optional
    ROOT/dev.json                           questions to evaluate on
    ROOT/database/<db_id>/<db_id>.sqlite    the databases

A folder of the distilled test suites holds several *.sqlite files per database and is read by naming it
(`load(root, database_dir="test_database")`). Invariant: a `Layout` that loads has a schema and at least one file for
every database that a question names, so nothing is found missing in the middle of a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "dev"]
ColumnName = tuple[str, str]  # (table, column)

_LAYOUT = (
    "a Spider layout is ROOT/tables.json, ROOT/train_spider.json (and train_others.json), ROOT/dev.json and "
    "ROOT/database/<db_id>/<db_id>.sqlite"
)
_TRAIN_FILES = ("train_spider.json", "train_others.json")
_DEV_FILES = ("dev.json",)


@dataclass(frozen=True, slots=True)
class Question:
    """One question in words with its gold query."""

    db_id: str
    question: str
    query: str  # gold SQL
    split: Split
    index: int  # position within its split, train_others behind train_spider: with the split, a stable identity


@dataclass(frozen=True, slots=True)
class Schema:
    """One database's tables, in the names that its SQL uses."""

    db_id: str
    tables: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]  # table -> its columns, in the file's order
    types: Mapping[str, tuple[str, ...]]  # table -> their types: text, number, time, boolean, others
    primary_keys: tuple[ColumnName, ...]
    foreign_keys: tuple[tuple[ColumnName, ColumnName], ...]  # (column, the column it refers to)


@dataclass(frozen=True, slots=True)
class Layout:
    """A loaded data set."""

    root: Path
    database_root: Path
    schemas: Mapping[str, Schema]  # db_id -> schema
    train: tuple[Question, ...]
    dev: tuple[Question, ...]

    def databases(self, db_id: str) -> tuple[Path, ...]:
        """All *.sqlite files of the database, sorted: one, or several where this is a test suite."""
        files = tuple(sorted((self.database_root / db_id).glob("*.sqlite")))
        if not files:
            raise FileNotFoundError(f"no *.sqlite file in {self.database_root / db_id}; {_LAYOUT}")
        return files


def load(root: str | os.PathLike[str], *, database_dir: str = "database") -> Layout:
    """Load the data set under `root`. Splits that have no file are empty, but one of them must be there.

    Raises FileNotFoundError for a missing file and ValueError for a malformed one; both say what should be there.
    """
    folder = Path(root)
    schemas = {schema.db_id: schema for schema in _schemas(folder / "tables.json")}
    train, dev = _questions(folder, _TRAIN_FILES, "train"), _questions(folder, _DEV_FILES, "dev")
    if not train and not dev:
        raise FileNotFoundError(f"{folder} has neither train_spider.json nor dev.json; {_LAYOUT}")
    layout = Layout(folder, folder / database_dir, schemas, train, dev)
    _check_databases(layout)
    return layout


def _check_databases(layout: Layout) -> None:
    for db_id in sorted({question.db_id for question in (*layout.train, *layout.dev)}):
        if db_id not in layout.schemas:
            raise ValueError(
                f"questions name the database {db_id!r}, which {layout.root / 'tables.json'} does not describe; "
                "add its schema or drop its questions"
            )
        layout.databases(db_id)


def _questions(folder: Path, names: tuple[str, ...], split: Split) -> tuple[Question, ...]:
    questions: list[Question] = []
    for name in names:
        path = folder / name
        if not path.exists():
            continue
        for number, record in enumerate(_records(path)):
            try:
                texts = [record[key] for key in ("db_id", "question", "query")]
            except KeyError as error:
                raise ValueError(
                    f"record {number} of {path} has no {error}; every question needs db_id, question and query"
                ) from None
            if not all(isinstance(text, str) for text in texts):
                raise ValueError(f"record {number} of {path}: db_id, question and query must be strings, got {texts}")
            questions.append(Question(texts[0], texts[1], texts[2], split, len(questions)))
    return tuple(questions)


def _schemas(path: Path) -> list[Schema]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; {_LAYOUT}")
    schemas = []
    for number, record in enumerate(_records(path)):
        try:
            schemas.append(_schema(record))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"record {number} of {path} is no Spider schema ({error!r}); it needs db_id, table_names_original, "
                "column_names_original as [table index, name], column_types, primary_keys and foreign_keys"
            ) from error
    return schemas


def _schema(record: Mapping[str, Any]) -> Schema:
    tables: tuple[str, ...] = tuple(record["table_names_original"])
    columns: dict[str, list[str]] = {table: [] for table in tables}
    types: dict[str, list[str]] = {table: [] for table in tables}
    names: list[ColumnName | None] = []  # by Spider's column number; the first column is "*" of no table
    for (table, name), kind in zip(record["column_names_original"], record["column_types"], strict=True):
        names.append(None if table < 0 else (tables[table], name))
        if table >= 0:
            columns[tables[table]].append(name)
            types[tables[table]].append(kind)
    return Schema(
        db_id=record["db_id"],
        tables=tables,
        columns={table: tuple(of) for table, of in columns.items()},
        types={table: tuple(of) for table, of in types.items()},
        primary_keys=tuple(_named(names, number) for number in _flat(record["primary_keys"])),
        foreign_keys=tuple((_named(names, a), _named(names, b)) for a, b in record["foreign_keys"]),
    )


def _flat(numbers: list[Any]) -> list[int]:
    """Column numbers; later data sets of this form write a composite key as a list in the list."""
    return [n for entry in numbers for n in (entry if isinstance(entry, list) else [entry])]


def _named(names: list[ColumnName | None], number: int) -> ColumnName:
    name = names[number]
    if name is None:
        raise ValueError(f"column {number} is '*' and cannot be a key")
    return name


def _records(path: Path) -> list[Mapping[str, Any]]:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON ({error}); copy it again from the data set's archive") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"{path} must hold a JSON list of objects; copy it again from the data set's archive")
    return records
