"""Writes the embedded study in the layout of the Spider release, so that the same reader serves both.

    tables.json  train_spider.json  dev.json  train_gold.sql  dev_gold.sql  database/<db>/<db>.sqlite

The key `sql` (Spider's parse tree) is an empty object: nothing here reads it. A finished folder is never changed: it is
written beside its place and renamed, so two processes may generate at once and a killed one leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

from experiments.spider.generate.domains import DOMAINS
from experiments.spider.generate.draws import Draws
from experiments.spider.generate.questions import Asked, ask, part
from experiments.spider.generate.rows import rows_of, write_database
from experiments.spider.generate.schema import Domain
from experiments.spider.lexer import Token, significant

Split = Literal["shared", "cross_db"]
TRAIN, DEV = 3500, 500
HELD_DATABASES = 4  # of cross_db
_SOURCES = ("generate", "hardness.py", "lexer.py")


def generate(seed: int, cache: Path, split: Split = "shared") -> Path:
    """The root of the data set of `seed`, written into the folder `cache` unless it is there already.

    split "shared": dev asks new questions about the databases of train; "cross_db": dev's databases are not in train.
    """
    if split not in ("shared", "cross_db"):
        raise ValueError(f"split is {split!r}: choose 'shared' or 'cross_db'")
    root = Path(cache) / f"spider-{split}-seed{seed}-{version()}"
    if root.is_dir():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        _write(draft, seed, split)
        draft.chmod(0o755)
        os.rename(draft, root)
    except OSError:
        if not root.is_dir():  # another process that finished first is no failure
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return root


def version() -> str:
    """A hash of the generator's own source: another generator writes to another folder."""
    home = Path(__file__).resolve().parent.parent
    files = [
        path for name in _SOURCES for path in ([home / name] if name.endswith(".py") else (home / name).glob("*.py"))
    ]
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _write(root: Path, seed: int, split: Split) -> None:
    train: list[dict[str, Any]] = []
    dev: list[dict[str, Any]] = []
    sizes = _sizes(seed, split)
    for domain in DOMAINS:
        rows = rows_of(domain, seed)
        write_database(root / "database" / domain.name / f"{domain.name}.sqlite", domain, rows)
        to_train, to_dev = sizes[domain.name]
        found = ask(domain, rows, seed, to_train + to_dev)
        ours, held = part(found, to_dev, Draws(seed, "split", domain.name))
        train += [_entry(domain, asked) for asked in ours]
        dev += [_entry(domain, asked) for asked in held]
    _write_json(root / "tables.json", [_tables_entry(domain) for domain in DOMAINS])
    for name, gold, entries in (("train_spider", "train_gold", train), ("dev", "dev_gold", dev)):
        _write_json(root / f"{name}.json", entries)
        lines = "".join(f"{entry['query']}\t{entry['db_id']}\n" for entry in entries)
        (root / f"{gold}.sql").write_text(lines, encoding="utf-8")


def _sizes(seed: int, split: Split) -> dict[str, tuple[int, int]]:
    """Database -> how many train and dev questions it gets."""
    names = [domain.name for domain in DOMAINS]
    if split == "shared":
        return {name: (TRAIN // len(names), DEV // len(names)) for name in names}
    held = set(Draws(seed, "held databases").sample(names, HELD_DATABASES))
    known = len(names) - HELD_DATABASES
    return {name: (0, DEV // HELD_DATABASES) if name in held else (TRAIN // known, 0) for name in names}


def _entry(domain: Domain, asked: Asked) -> dict[str, Any]:
    tokens = significant(asked.query)
    return {
        "db_id": domain.name,
        "query": asked.query,
        "query_toks": [token.text for token in tokens],
        "query_toks_no_value": [_no_value(token) for token in tokens],
        "question": asked.question,
        "question_toks": _words(asked.question),
        "sql": {},
    }


def _no_value(token: Token) -> str:
    return "value" if token.kind in ("string", "number") else token.text.lower()


def _words(question: str) -> list[str]:
    return [token.text for token in significant(question)]


def _tables_entry(domain: Domain) -> dict[str, Any]:
    columns = [(i, column) for i, table in enumerate(domain.tables) for column in table.columns]
    place = {(i, column.name): n for n, (i, column) in enumerate(columns, start=1)}
    number = {table.name: i for i, table in enumerate(domain.tables)}
    types = ["text"] + ["text" if column.type == "TEXT" else "number" for _, column in columns]
    foreign = [
        [place[i, column.name], place[number[column.target], domain.table(column.target).key.name]]
        for i, column in columns
        if column.kind == "link"
    ]
    return {
        "column_names": [[-1, "*"], *([i, column.name.replace("_", " ")] for i, column in columns)],
        "column_names_original": [[-1, "*"], *([i, column.name] for i, column in columns)],
        "column_types": types,
        "db_id": domain.name,
        "foreign_keys": foreign,
        "primary_keys": [place[i, table.key.name] for i, table in enumerate(domain.tables)],
        "table_names": [table.name.replace("_", " ") for table in domain.tables],
        "table_names_original": [table.name for table in domain.tables],
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
