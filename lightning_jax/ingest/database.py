"""Engines over the store's URL, and the two places where database dialects differ: pragmas and insert-or-ignore.

The writer's transactions start with BEGIN IMMEDIATE, so a second process cannot make a commit fail half-way;
readers get snapshots of their own (WAL) and never hold the writer up.
"""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.pool import QueuePool

BUSY_TIMEOUT_MS = 5000
POSTGRES_TIMEOUT_S = 10
_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def open_engine(url: str, *, writer: bool) -> Engine:
    """An engine for ``url``; ``writer`` takes the write lock when a transaction begins.

    Raises ValueError for an in-memory database (a restart must find what was acknowledged) or an unknown dialect.
    """
    parsed = make_url(url)
    dialect = parsed.get_backend_name()
    if dialect not in _INSERT:
        raise ValueError(f"store.url has the dialect {dialect!r}; supported are {sorted(_INSERT)}")
    if dialect == "postgresql":
        return create_engine(
            parsed, pool_size=1 if writer else 8, pool_pre_ping=True, connect_args=_postgres_patience()
        )
    if parsed.database in (None, "", ":memory:"):
        raise ValueError(f"store.url is {url!r}, an in-memory database; name a file: sqlite:////path/to/store.sqlite")
    Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        parsed,
        poolclass=QueuePool,
        pool_size=1 if writer else 8,
        max_overflow=0 if writer else 8,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000},
    )
    event.listen(engine, "connect", _set_pragmas)
    event.listen(engine, "begin", _begin_immediate if writer else _begin_deferred)
    return engine


def _postgres_patience() -> dict[str, Any]:
    """A server that hangs or vanished is an error within seconds, so that callers are told to come back."""
    return {
        "connect_timeout": POSTGRES_TIMEOUT_S,
        "tcp_user_timeout": POSTGRES_TIMEOUT_S * 1000,
        "keepalives_idle": POSTGRES_TIMEOUT_S,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "options": f"-c statement_timeout={POSTGRES_TIMEOUT_S}s",
    }


def lock(connection: Connection, name: str) -> None:
    """Hold ``name`` until the transaction ends. SQLite has one writer anyway; PostgreSQL's servers queue up here."""
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
        connection.execute(select(func.pg_advisory_xact_lock(number)))


def insert_new(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> int:
    """Insert the rows whose keys are new and return how many were; those that exist already stay as they are."""
    if not rows:
        return 0
    # RETURNING (what inline() leaves out) and the defaults of SQLAlchemy both hide the row count of an insert.
    statement = _INSERT[connection.dialect.name](table).on_conflict_do_nothing().inline()
    statement = statement.execution_options(preserve_rowcount=True)
    # executemany reports one rowcount for all on sqlite3 but not on every driver: count there row by row.
    if connection.dialect.name == "sqlite":
        return max(connection.execute(statement, rows).rowcount, 0)
    return sum(max(connection.execute(statement, row).rowcount, 0) for row in rows)


def _set_pragmas(dbapi_connection: Any, _record: Any) -> None:
    # sqlite3's own transaction handling starts transactions late; SQLAlchemy's begin event does it instead.
    dbapi_connection.isolation_level = None
    cursor: sqlite3.Cursor = dbapi_connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA temp_store=MEMORY")
    finally:
        cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_deferred(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
