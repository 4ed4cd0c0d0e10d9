"""Model-written SQL cannot change, create, read elsewhere, run on, or fill the memory; and what is fine runs."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments.spider import execution
from experiments.spider.execution import explain, run
from tests.spider.toy import build, singers

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT count(*) FROM c"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return singers(tmp_path / "toy.sqlite")


def test_rows_and_columns(database: Path) -> None:
    result = run(database, "-- all of them\nSELECT name, age AS years FROM singer ORDER BY id;")
    assert (result.rows, result.columns, result.ok) == ((("Ann", 30), ("Bob", 25)), ("name", "years"), True)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM singer",
        "UPDATE singer SET age = 0",
        "INSERT INTO singer VALUES(9, 'x', 1, 'y')",
        "DROP TABLE singer",
        "CREATE TABLE pwned(x)",
        "CREATE TEMP TABLE pwned(x)",
        "ATTACH DATABASE '{folder}/evil.db' AS e",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM pragma_table_info('singer')",
        "VACUUM INTO '{folder}/evil.db'",
        "BEGIN",
        "SAVEPOINT s",
        "REINDEX",
        "ANALYZE",
        "WITH x AS (SELECT 1) DELETE FROM singer",
        "SELECT load_extension('/tmp/evil.so')",
    ],
)
def test_attacks_change_nothing(database: Path, sql: str) -> None:
    before = database.read_bytes()
    attack = sql.format(folder=database.parent)
    for result in (run(database, attack), explain(database, attack)):
        assert (result.error, result.rows) == ("forbidden", ())
    assert database.read_bytes() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]
    assert len(run(database, "SELECT * FROM singer").rows) == 2


def test_the_file_is_read_only_even_without_the_authorizer(database: Path) -> None:
    connection = execution._open(database)
    connection.set_authorizer(None)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM singer")
    connection.close()


@pytest.mark.parametrize("sql", ["", "  \n", "-- nothing", "/* nothing", ";", "SELEC 1", "SELECT 1 +", "SELECT x"])
def test_what_is_no_query_is_invalid(database: Path, sql: str) -> None:
    assert run(database, sql).error == explain(database, sql).error == "invalid"


@pytest.mark.parametrize(
    "sql",
    ["SELECT 1; SELECT 2", "SELECT 1; DROP TABLE singer", "SELECT '\0'", "SELECT '\ud800'", "SELECT ?", "SELECT :x"],
)
def test_texts_sqlite_should_not_run(database: Path, sql: str) -> None:
    assert run(database, sql).error == "invalid"


def test_one_statement_may_hold_semicolons_in_literals_and_end_with_some(database: Path) -> None:
    assert run(database, "SELECT ';' AS \"a;b\" ; ; -- done;").rows == ((";",),)


def test_runaway_queries_end_by_steps_and_by_the_clock(database: Path) -> None:
    assert run(database, ENDLESS, timeout_s=600.0, max_steps=1_000_000).error == "timeout"
    assert run(database, ENDLESS, timeout_s=0.1, max_steps=10**15).error == "timeout"
    slow = f"SELECT sum(x) FROM ({ENDLESS.replace('count(*)', 'x')}) LIMIT 1"
    assert run(database, slow, timeout_s=0.1, max_steps=10**15).error == "timeout"
    assert run(database, "SELECT count(*) FROM singer").rows == ((2,),)  # the connection still works


def test_the_step_limit_falls_at_the_same_place_each_time(database: Path) -> None:
    rows = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c LIMIT {n}) SELECT count(*) FROM c"
    ends = [run(database, rows.format(n=n), timeout_s=600.0, max_steps=300_000).ok for n in (5_000, 100_000) * 3]
    assert ends == [True, False] * 3


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT zeroblob(1000000000)",
        "SELECT randomblob(1000000000)",
        "SELECT replace(hex(zeroblob(40000)), '0', '0123456789')",
        "WITH RECURSIVE c(x) AS (SELECT 'ab' UNION ALL SELECT x||x FROM c) SELECT max(length(x)) FROM c",
        "SELECT group_concat(hex(zeroblob(40000))) FROM singer",
    ],
)
def test_huge_values_are_refused(database: Path, sql: str) -> None:
    assert run(database, sql).error == "too_large"
    assert run(database, "SELECT printf('%1000000000d', 1)").rows == ((None,),)  # SQLite's own answer


def test_results_are_capped(database: Path) -> None:
    numbers = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c LIMIT 1000) SELECT {} FROM c"
    assert len(run(database, numbers.format("x"), max_rows=1_000).rows) == 1_000
    assert run(database, numbers.format("x"), max_rows=999).error == "too_many_rows"
    assert run(database, numbers.format("hex(zeroblob(40000))")).error == "too_large"


def test_exponential_table_expressions_are_refused_before_they_unfold(database: Path) -> None:
    chain = ", ".join(f"c{i + 1} AS (SELECT x.a FROM c{i} x, c{i} y)" for i in range(40))
    bomb = f"WITH c0 AS (SELECT 1 a), {chain} SELECT count(*) FROM c40"
    for result in (run(database, bomb), explain(database, bomb)):
        assert result.error == "invalid"
        assert "unfold" in result.message
    fine = "WITH old AS (SELECT * FROM singer WHERE age > 26), few AS (SELECT old.name FROM old) SELECT name FROM few"
    assert run(database, fine).rows == (("Ann",),)


def test_deep_and_long_texts_are_refused(database: Path) -> None:
    assert run(database, "SELECT " + "(" * 3000 + "1" + ")" * 3000).error == "invalid"
    assert run(database, "SELECT 1" + "+1" * 1000).error == "invalid"
    assert run(database, "SELECT 1" + " " * execution.MAX_SQL_CHARS).error == "invalid"


def test_explain_needs_the_schema_and_runs_nothing(database: Path) -> None:
    assert explain(database, "SELECT name FROM singer").ok
    assert explain(database, ENDLESS).ok
    assert not explain(database, "SELECT name FROM band").ok
    assert not explain(database, "EXPLAIN SELECT 1").ok


def test_undecodable_text_loses_its_bad_bytes(tmp_path: Path) -> None:
    insert = "INSERT INTO t VALUES(CAST(x'4DE9' AS TEXT));"  # "Mé" in Latin-1
    database = build(tmp_path / "latin.sqlite", ["CREATE TABLE t(a TEXT);", insert])
    assert run(database, "SELECT a FROM t").rows == (("M",),)


def test_missing_and_broken_files_are_no_fault_of_the_query(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="database/<db_id>"):
        run(tmp_path / "none.sqlite", "SELECT 1")
    assert not (tmp_path / "none.sqlite").exists()
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"no database at all" * 100)
    with pytest.raises(OSError, match="no readable SQLite database"):
        run(broken, "SELECT * FROM singer")


def test_a_replaced_file_is_seen(database: Path) -> None:
    assert len(run(database, "SELECT * FROM singer").rows) == 2
    database.unlink()
    singers(database, [(1, "Cid", 3, "NL")])
    assert run(database, "SELECT name FROM singer").rows == (("Cid",),)


def test_many_threads_and_more_files_than_are_kept_open(tmp_path: Path) -> None:
    files = [singers(tmp_path / f"{i}.sqlite", [(i, f"n{i}", i, "FR")]) for i in range(20)]

    def read(i: int) -> object:
        bad = run(files[i % 20], ENDLESS, max_steps=200_000).error
        return bad, run(files[i % 20], "SELECT id FROM singer").rows

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(120))) == [("timeout", ((i % 20,),)) for i in range(120)]


def test_sqlite_is_compiled_safe_enough() -> None:
    assert sqlite3.threadsafety == 3
