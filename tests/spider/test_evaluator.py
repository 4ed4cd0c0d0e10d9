"""Verdicts equal the official evaluator's: recorded pairs, and a definition by brute force."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.spider.evaluator import GoldError, execution_match, same_rows
from experiments.spider.lexer import remove_word, tokenize
from tests.spider.toy import SHARED, build, golden, singers

PAIRS = golden("spider_pairs.json")
TOY = golden("spider_exec.json")


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("spider")
    return {name: build(folder / f"{name}.sqlite", dump) for name, dump in PAIRS["databases"].items()}


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("toys")
    concert = TOY["schema"][1] + ";"
    paths = []
    for name, rows in TOY["rows"].items():
        path = singers(folder / name, [tuple(row) for row in rows])
        inserts = [f"INSERT INTO concert VALUES({','.join(map(str, row))});" for row in TOY["concert"]]
        paths.append(build(path, [concert, *inserts]))
    return paths


def test_recorded_pairs_of_all_kinds(databases: dict[str, Path]) -> None:
    assert len({pair["kind"] for pair in PAIRS["pairs"]}) == 13
    for pair in PAIRS["pairs"]:
        for recorded, keep_distinct in (("exec", False), ("exec_keep_distinct", True)):
            verdict = execution_match(
                [databases[pair["db_id"]]], pair["gold"], pair["pred"], keep_distinct=keep_distinct
            )
            assert verdict.match == bool(pair[recorded]), (pair, verdict)


@pytest.mark.parametrize("case", TOY["cases"], ids=lambda case: case["note"])
def test_toy_cases_on_one_database_and_on_a_suite(toys: list[Path], case: dict[str, Any]) -> None:
    for name, expected in case["result"].items():
        mode, _, suite = name.partition("/")
        chosen = toys[:1] if suite == "single_db" else toys
        verdict = execution_match(chosen, case["gold"], case["pred"], keep_distinct=mode == "keep_distinct")
        assert verdict.match == bool(expected), (name, verdict)
        assert (verdict.reason == "match") == verdict.match


@pytest.mark.parametrize("attack", [a["query"] for a in TOY["attacks"] if "score" in a])
def test_attacks_score_nothing_and_leave_no_trace(toys: list[Path], attack: str) -> None:
    before = [path.read_bytes() for path in toys]
    assert not execution_match(toys, "SELECT count(*) FROM singer", attack).match
    assert [path.read_bytes() for path in toys] == before


def test_every_recorded_pair_of_the_full_oracle() -> None:
    oracle = SHARED / "evaluation_oracle/oracle.jsonl"
    if not oracle.exists():
        pytest.skip(f"the full oracle is not at {oracle}; set LIGHTNING_JAX_SHARED to the folder that has data/spider")
    pairs, differences = [json.loads(line) for line in oracle.read_text().splitlines()], []
    assert pairs
    for pair in pairs:
        files = sorted((SHARED / "database" / pair["db_id"]).glob("*.sqlite"))
        for recorded, keep in (("exec", False), ("exec_keep_distinct", True)):
            if execution_match(files, pair["gold"], pair["pred"], keep_distinct=keep).match != bool(pair[recorded]):
                differences.append((recorded, pair))
    assert differences == []


def test_repairs_before_comparison(toys: list[Path]) -> None:
    for gold, pred in (
        ("SELECT name FROM singer WHERE age >= 30", "SELECT name FROM singer WHERE age > = 30"),
        ("SELECT name FROM singer WHERE age != 30", "SELECT name FROM singer WHERE age ! = 30"),
        ("SELECT 2020 - age FROM singer", "SELECT year( curdate() ) - age FROM singer"),
    ):
        assert execution_match(toys, gold, pred).match
    # DISTINCT goes only where it is a word of SQL.
    literal = "SELECT name FROM singer WHERE country = 'distinct' OR name = 'Bob'"
    assert not execution_match(toys, literal, literal.replace("'distinct'", "'FR'")).match


def test_a_failing_gold_query_and_no_database_raise(toys: list[Path]) -> None:
    with pytest.raises(GoldError, match="no such table"):
        execution_match(toys, "SELECT * FROM band", "SELECT 1")
    with pytest.raises(ValueError, match=r"every \*.sqlite"):
        execution_match([], "SELECT 1", "SELECT 1")


def test_where_this_evaluator_is_stricter_on_purpose(toys: list[Path]) -> None:
    # The official one drops all but the first statement.
    assert execution_match(toys, "SELECT name FROM singer", "SELECT name FROM singer; SELECT 1").reason == "invalid"
    assert execution_match(toys, "SELECT name FROM singer", "SELECT name FROM singer;").match


VALUES = st.sampled_from([0, 1, 2, "a", "b", None])


@st.composite
def two_tables(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """A table and another: unrelated, or the first with its columns, rows and one value moved."""
    width, height = draw(st.integers(1, 4)), draw(st.integers(0, 5))
    row = st.tuples(*[VALUES] * width)
    left = draw(st.lists(row, min_size=height, max_size=height))
    columns = draw(st.permutations(range(width)))
    right = [tuple(r[c] for c in columns) for r in draw(st.permutations(left))]
    if right and draw(st.booleans()):
        i = draw(st.integers(0, len(right) - 1))
        right[i] = draw(row)
    return left, right


def by_definition(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]], ordered: bool) -> bool:
    if not left and not right:
        return True
    if len(left) != len(right):
        return False
    for columns in itertools.permutations(range(len(left[0]))):
        moved = [tuple(row[c] for c in columns) for row in right]
        if moved == left or (not ordered and Counter(moved) == Counter(left)):
            return True
    return False


@given(two_tables(), st.booleans())
def test_same_rows_is_the_definition(tables: tuple[list[Any], list[Any]], ordered: bool) -> None:
    left, right = tables
    assert same_rows(left, right, ordered=ordered) == by_definition(left, right, ordered)


def test_numbers_compare_as_in_python_but_not_beside_every_text() -> None:
    assert same_rows([(30, "x")], [(30.0, "x")], ordered=False)
    # The official quick rejection sorts a row's values by their text, and "300" sorts before 30 but behind 30.0.
    assert not same_rows([(30, "300")], [(30.0, "300")], ordered=False)


@pytest.mark.parametrize("ordered", [False, True])
def test_wide_results_do_not_explode(ordered: bool) -> None:
    rows = [tuple((i * (c + 3)) % 7 for c in range(40)) for i in range(30)]
    moved = [tuple(reversed(row)) for row in (rows if ordered else rows[::-1])]
    assert same_rows(rows, moved, ordered=ordered)
    alike = [(0,) * 40] * 29 + [tuple(range(40))]
    assert not same_rows(alike, [*alike[:-1], (*alike[-1][:-1], 40)], ordered=ordered)
    assert same_rows([(1,) * 30] * 3, [(1,) * 30] * 3, ordered=ordered)


@given(st.text(alphabet="aDISTNCx'\"`[]-/*\n;., 19", max_size=30))
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(token.text for token in tokenize(text)) == text


def test_words_inside_literals_names_and_comments_are_kept() -> None:
    sql = "SELECT DISTINCT 'distinct', \"distinct\", count(distinct a) FROM distinctive -- distinct\n"
    assert remove_word(sql, "distinct") == sql.replace("DISTINCT ", " ").replace("(distinct ", "( ")
