"""Runs SQL that a model wrote, on SQLite files that must survive it.

Invariant: nothing a query does can change or create a file, read another one, or hold the process for long. A database
is opened read-only and immutable; an authorizer admits SELECT and nothing else (no ATTACH, PRAGMA, load_extension);
rows, bytes, lengths and nesting are capped; two limits stop a runaway query:

* `max_steps` instructions of SQLite's virtual machine, counted by a progress handler. They do not depend on how busy
  the machine is, so the same query on the same file always ends the same way;
* `timeout_s` seconds, kept by a timer that interrupts the connection: the backstop for steps that are slow themselves
  (`instr` of two long strings). A progress handler would need to run after every few instructions to see those, and
  each run waits for Python's lock.

A query that fails is data, not an exception: `Result.error` says how. An unreadable or missing database is no fault
of the query and raises. All functions may be called from any thread; each thread keeps a few connections open.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.spider.expansion import expansions
from experiments.spider.lexer import significant, single_statement

ErrorKind = Literal[
    "invalid",  # SQLite cannot prepare or evaluate it: syntax, unknown names, not exactly one statement
    "forbidden",  # not a plain SELECT
    "timeout",  # max_steps or timeout_s reached
    "too_many_rows",  # more than max_rows
    "too_large",  # more bytes than allowed, in all or in one value
]
Row = tuple[Any, ...]

MAX_SQL_CHARS = 10_000
MAX_VALUE_BYTES = 100_000  # bounds what one call of replace() or instr() can cost: they are not interruptible
MAX_RESULT_BYTES = 16_000_000
MAX_EXPANSIONS = 4_096
MAX_STEPS = 20_000_000  # about 0.8 s on one idle core; Spider's gold queries stay below 200,000
_STEPS_PER_CHECK = 100_000
_FETCH_ROWS = 256
_OPEN_CONNECTIONS = 16  # per thread

_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES),
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_SQL_CHARS * 4),
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
    (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
)
_ALLOWED_ACTIONS = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
)
# For running them the authorizer alone would do, but EXPLAIN VACUUM and some REINDEX never ask it.
_OTHER_STATEMENT = re.compile(
    r"alter|analyze|attach|begin|commit|create|delete|detach|drop|end|explain|insert|pragma|reindex|release|replace|"
    r"rollback|savepoint|update|vacuum",
    re.IGNORECASE,
)
_FORBIDDEN_FUNCTIONS = frozenset(("load_extension", "fts3_tokenizer"))
_BROKEN_FILE = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN))
_KINDS: dict[int, ErrorKind] = {
    sqlite3.SQLITE_INTERRUPT: "timeout",
    sqlite3.SQLITE_AUTH: "forbidden",
    sqlite3.SQLITE_READONLY: "forbidden",
    sqlite3.SQLITE_TOOBIG: "too_large",
    sqlite3.SQLITE_NOMEM: "too_large",
}


@dataclass(frozen=True, slots=True)
class Result:
    """What a query gave: rows, or the kind of error and SQLite's words for it."""

    rows: tuple[Row, ...] = ()
    columns: tuple[str, ...] = ()
    error: ErrorKind | None = None
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the query ran to its end."""
        return self.error is None


def run(
    path: str | os.PathLike[str],
    sql: str,
    *,
    timeout_s: float = 1.0,
    max_rows: int = 10_000,
    max_steps: int = MAX_STEPS,
) -> Result:
    """Run one SELECT on the SQLite file at `path`. Text that is no UTF-8 loses the bytes that are not.

    Raises FileNotFoundError where there is no such file, OSError where it is no readable database.
    """
    try:
        statement = _checked(sql)
    except ValueError as error:
        return Result(error="forbidden" if isinstance(error, _Forbidden) else "invalid", message=str(error))
    return _Execution(_connection(path), path, timeout_s, max_steps).rows_of(statement, max_rows)


def explain(path: str | os.PathLike[str], sql: str) -> Result:
    """Whether `sql` is valid on the schema of the file at `path`: ok iff SQLite can EXPLAIN it under `run`'s rules.

    The query itself is not run. The rows are SQLite's program, of no meaning. Raises as `run` does.
    """
    try:
        statement = _checked(sql)
    except ValueError as error:
        return Result(error="forbidden" if isinstance(error, _Forbidden) else "invalid", message=str(error))
    return _Execution(_connection(path), path, 1.0, MAX_STEPS).rows_of("EXPLAIN " + statement, 100_000)


class _Forbidden(ValueError):
    """A statement that is no query."""


def _checked(sql: str) -> str:
    """The one statement in `sql`. Raises ValueError for what SQLite should not even be shown."""
    if len(sql) > MAX_SQL_CHARS:
        raise ValueError(f"the query has {len(sql)} characters, the limit is {MAX_SQL_CHARS}; write a shorter one")
    if "\0" in sql or any("\ud800" <= char <= "\udfff" for char in sql):
        raise ValueError("the query holds a NUL or half of a surrogate pair; write plain text")
    statement = single_statement(sql)
    first = significant(statement)[0]
    if _OTHER_STATEMENT.fullmatch(first.text):
        raise _Forbidden(f"{first.text.upper()} is not allowed; only queries (SELECT, WITH, VALUES) may run")
    copies = expansions(statement)
    if copies > MAX_EXPANSIONS:
        raise ValueError(
            f"the query's WITH expressions unfold to up to {copies} copies, the limit is {MAX_EXPANSIONS}; "
            "name each of them fewer times"
        )
    return statement


class _Execution:
    """One run of one statement: its budget, and the timer that ends it."""

    def __init__(
        self, connection: sqlite3.Connection, path: str | os.PathLike[str], timeout_s: float, max_steps: int
    ) -> None:
        self._connection = connection
        self._path = path
        self._timeout_s = timeout_s
        self._checks_left = max(1, max_steps // _STEPS_PER_CHECK)
        self._lock = threading.Lock()
        self._running = True  # guarded by the lock: a late timer must not hit the connection's next statement

    def rows_of(self, statement: str, max_rows: int) -> Result:
        """Run `statement`, fetching at most `max_rows` rows."""
        self._connection.set_progress_handler(self._out_of_steps, _STEPS_PER_CHECK)
        timer = threading.Timer(self._timeout_s, self._interrupt)
        timer.daemon = True
        timer.start()
        cursor = self._connection.cursor()
        try:
            return self._fetch(cursor.execute(statement), max_rows)
        except (sqlite3.Error, sqlite3.Warning) as error:
            return self._failure(error)
        except (MemoryError, OverflowError) as error:
            return Result(error="too_large", message=str(error) or "SQLite ran out of memory")
        finally:
            with self._lock:
                self._running = False
            timer.cancel()
            cursor.close()

    def _fetch(self, cursor: sqlite3.Cursor, max_rows: int) -> Result:
        columns = tuple(column[0] for column in cursor.description or ())
        rows: list[Row] = []
        size = 0
        while batch := cursor.fetchmany(_FETCH_ROWS):
            rows += batch
            size += sum(len(value) for row in batch for value in row if isinstance(value, (str, bytes)))
            if len(rows) > max_rows:
                return Result(error="too_many_rows", message=f"the result has more than {max_rows} rows")
            if size > MAX_RESULT_BYTES:
                return Result(error="too_large", message=f"the result has more than {MAX_RESULT_BYTES} bytes")
        return Result(rows=tuple(rows), columns=columns)

    def _failure(self, error: Exception) -> Result:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _BROKEN_FILE:
            raise OSError(f"{self._path} is no readable SQLite database ({error}); restore the file") from error
        kind: ErrorKind = "invalid" if code is None else _KINDS.get(code & 0xFF, "invalid")
        if str(error).startswith("not authorized"):  # a refusal inside an expression has SQLite's general error code
            kind = "forbidden"
        return Result(error=kind, message=str(error))

    def _out_of_steps(self) -> bool:
        self._checks_left -= 1
        return self._checks_left < 0

    def _interrupt(self) -> None:
        with self._lock:
            if self._running:
                self._connection.interrupt()


class _Connections(threading.local):
    """The calling thread's open connections, least recently used first."""

    def __init__(self) -> None:
        self.by_file: OrderedDict[tuple[object, ...], sqlite3.Connection] = OrderedDict()


# Opening a file costs more than most queries on it. Per thread, because SQLite's connections belong to one.
_CONNECTIONS = _Connections()


def _connection(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """An open connection to the file as it is now; a file that was replaced or a forked process gets a new one."""
    try:
        state = os.stat(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no SQLite database at {path}; a Spider layout keeps it at database/<db_id>/<db_id>.sqlite"
        ) from None
    key = (os.fspath(path), state.st_ino, state.st_mtime_ns, state.st_size, os.getpid())
    cache = _CONNECTIONS.by_file
    connection = cache.get(key)
    if connection is None:
        connection = cache[key] = _open(Path(path))
        if len(cache) > _OPEN_CONNECTIONS:
            cache.popitem(last=False)[1].close()
    cache.move_to_end(key)
    return connection


def _open(path: Path) -> sqlite3.Connection:
    uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
    # The timer's thread calls interrupt(), which is safe from anywhere; all else stays in the opening thread.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=True)
    connection.text_factory = lambda raw: raw.decode(errors="ignore")
    for limit, value in _LIMITS:
        connection.setlimit(limit, value)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.set_authorizer(_authorize)
    return connection


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action not in _ALLOWED_ACTIONS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
