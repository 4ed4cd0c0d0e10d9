"""The study's reward terms on what agents leave behind, and the shipped reward configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.spider import reward_terms
from lightning_jax.rewards import Composition, score
from lightning_jax.types import Task
from tests.credit.samples import trajectory
from tests.spider.toy import singers

CONF = Path(__file__).parents[2] / "conf/reward"
GOLD = "SELECT name FROM singer WHERE age > 26"
TERMS = reward_terms.terms(max_calls=5)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    paths = [singers(tmp_path / "a.sqlite"), singers(tmp_path / "b.sqlite", [(1, "Eve", 77, "UK"), (2, "Al", 3, "FR")])]
    return Task("t", {}, {"query": GOLD, "databases": [str(path) for path in paths]})


def values(task: Task, output: dict[str, Any], calls: int = 1) -> dict[str, float]:
    return {name: term(task, trajectory(calls, output=output)) for name, term in TERMS.items()}


def test_terms_by_hand(task: Task) -> None:
    right = {"query": GOLD.lower(), "queries": ["SELECT nope FROM singer", "SELEC", GOLD, "SELECT 1"]}
    assert values(task, right, calls=3) == {"execution": 1.0, "syntax": 1.0, "process": 0.5, "efficiency": 0.5}
    lucky = {"query": "SELECT 'Ann'", "queries": []}  # right on the first database only
    assert values(task, lucky) == {"execution": 0.0, "syntax": 1.0, "process": 0.0, "efficiency": 1.0}


@pytest.mark.parametrize("output", [{}, {"query": ""}, {"query": None, "queries": "SELECT 1"}, {"query": ["SELECT 1"]}])
def test_output_of_another_shape_is_worth_nothing(task: Task, output: dict[str, Any]) -> None:
    assert values(task, output) == {"execution": 0.0, "syntax": 0.0, "process": 0.0, "efficiency": 1.0}


def test_judgements_follow_the_database_file(task: Task) -> None:
    database = Path(task.reference["databases"][0])
    output = {"query": "SELECT 'Cid'"}
    one = Task("t", {}, {"query": GOLD, "databases": [str(database)]})
    assert values(one, output)["execution"] == 0.0
    database.unlink()
    singers(database, [(1, "Cid", 30, "FR"), (2, "Al", 2, "FR"), (3, "Bo", 1, "FR")])
    assert values(one, output)["execution"] == 1.0


def test_broken_references(task: Task) -> None:
    composition = Composition.from_mapping({"terms": {"execution": 1.0}})
    bad = Task("t", {}, {**task.reference, "query": "SELECT * FROM band"})
    assert not score(bad, trajectory(output={"query": "SELECT 1"}), composition, TERMS).valid
    with pytest.raises(ValueError, match="needs `databases`"):
        score(Task("t", {}, {"query": GOLD}), trajectory(output={"query": "SELECT 1"}), composition, TERMS)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("spider", 1.0, 0.4), ("spider_gated", 1.2, 0.0), ("execution", 1.0, 0.0), ("comprehensive", 1.0, 0.3)],
)
def test_shipped_rewards(task: Task, name: str, right: float, wrong: float) -> None:
    text = (CONF / f"{name}.yaml").read_text()
    assert text.startswith("# ")
    composition = Composition.from_mapping(yaml.safe_load(text))
    for query, expected in ((GOLD, right), ("SELECT name FROM singer", wrong)):
        result = score(task, trajectory(output={"query": query, "queries": [query]}), composition, TERMS)
        assert result.total == pytest.approx(expected)
        assert set(result.components) == set(composition.terms)
        assert result.outcome == (query == GOLD)
