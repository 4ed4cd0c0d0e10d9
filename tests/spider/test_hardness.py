"""Levels equal the recorded ones of the official evaluation, and those of Spider's own parses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.spider.hardness import Components, components, hardness
from tests.spider.toy import SHARED, golden

LIKE = 9  # number of the operator in Spider's parses


def test_recorded_levels() -> None:
    pairs = golden("spider_pairs.json")["pairs"]
    assert {pair["hardness"] for pair in pairs} == {"easy", "medium", "hard", "extra"}
    for pair in pairs:
        assert hardness(pair["gold"]) == pair["hardness"], pair["gold"]


@pytest.mark.parametrize(
    ("sql", "counts"),
    [
        ("SELECT a FROM t", (0, 0, 0)),
        ("select distinct a, b from t where c = 'x or y like z'", (1, 0, 1)),
        ("SELECT a FROM t WHERE b BETWEEN 1 AND 2 AND c = 3", (1, 0, 1)),
        ("SELECT a FROM t WHERE b BETWEEN 1 AND 2", (1, 0, 0)),
        ("SELECT a FROM t JOIN u ON t.x = u.x JOIN v ON u.y = v.y WHERE b LIKE '%a%' OR c = 1", (5, 0, 1)),
        ("SELECT a FROM t WHERE b NOT IN (SELECT b FROM u WHERE c > 1)", (1, 1, 0)),
        ("SELECT max(a), min(a) FROM t", (0, 0, 2)),
        ("SELECT a FROM t GROUP BY a, b HAVING count(*) > 1 ORDER BY count(*) DESC LIMIT 3", (3, 0, 1)),
        ("SELECT a FROM t UNION SELECT a FROM u ORDER BY a LIMIT 1", (0, 1, 0)),
        ("SELECT a FROM t EXCEPT SELECT a FROM u UNION SELECT a FROM v", (0, 1, 0)),
        ("SELECT count(*) FROM (SELECT a FROM t WHERE b = 1 AND c = 2)", (0, 0, 0)),
        # The published parser reads on behind a column on the right: the OR, and the LIKE in it, are not seen.
        ("SELECT a FROM t JOIN u ON t.x = u.x OR t.y LIKE u.y", (1, 0, 0)),
        ("SELECT a FROM t WHERE (b = 1 OR c = 2) AND d = 3;", (2, 0, 1)),
    ],
)
def test_components(sql: str, counts: tuple[int, int, int]) -> None:
    assert components(sql) == Components(*counts)


def test_what_is_no_select_is_refused() -> None:
    for sql in ("", "-- SELECT", "DELETE FROM t", "WITH x AS (SELECT 1) SELECT * FROM x"):
        with pytest.raises(ValueError, match="begins with SELECT"):
            hardness(sql)


def from_parse(sql: dict[str, Any]) -> Components:
    """The published counts on a parse of Spider's files."""
    clauses = [sql["from"]["conds"], sql["where"], sql["having"]]
    units = [unit for clause in clauses for unit in clause[::2]]
    ordered = sql["orderBy"][1] if sql["orderBy"] else []
    parts = [sql["select"][1], sql["where"][::2], sql["groupBy"], sql["having"]]
    parts.append([column for value in ordered for column in value[1:] if column])
    aggregates = sum(unit[0] != 0 for part in parts for unit in part)
    many = [aggregates, len(sql["select"][1]), len(sql["where"]), len(sql["groupBy"])]
    return Components(
        first=sum(bool(sql[name]) for name in ("where", "groupBy", "orderBy"))
        + (sql["limit"] is not None)
        + len(sql["from"]["table_units"])
        - 1
        + sum(clause[1::2].count("or") for clause in clauses)
        + sum(unit[1] == LIKE for unit in units),
        second=sum(isinstance(value, dict) for unit in units for value in unit[3:5])
        + sum(sql[name] is not None for name in ("intersect", "except", "union")),
        others=sum(count > 1 for count in many),
    )


@pytest.mark.parametrize("name", ["dev.json", "train_spider.json"])
def test_counts_equal_those_of_spiders_own_parses(name: str) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"Spider's {name} is not at {path}; set LIGHTNING_JAX_SHARED to the folder that has data/spider")
    for record in json.loads(path.read_text()):
        assert components(record["query"]) == from_parse(record["sql"]), record["query"]
