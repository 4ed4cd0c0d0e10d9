"""Composition of rewards: totals by hand, gates, whose failure is whose, and teaching errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax.rewards import Composition, Unscorable, generic, reported_component, score
from lightning_jax.rewards.terms import Term
from lightning_jax.types import Task, Trajectory
from tests.credit.samples import trajectory

TASK = Task("t", {})
CONF = Path(__file__).parents[2] / "conf/reward"


def constant(value: float) -> Term:
    return lambda task, trajectory: value


def functions(**values: float) -> dict[str, Term]:
    return {name: constant(value) for name, value in values.items()}


def composed(settings: dict[str, Any], **values: float) -> float:
    return score(TASK, trajectory(), Composition.from_mapping(settings), functions(**values)).total


def test_weighted_sum_records_all_components() -> None:
    composition = Composition.from_mapping({"outcome": "a", "terms": {"a": 0.6, "b": {"weight": 0.4}, "c": 0.0}})
    result = score(TASK, trajectory(), composition, functions(a=1.0, b=0.5, c=0.7, unused=9.0))
    assert result.total == pytest.approx(0.8)
    assert result.components == {"a": 1.0, "b": 0.5, "c": 0.7}
    assert (result.outcome, result.valid) == (1.0, True)


def test_gated_shaping_counts_only_behind_the_outcome() -> None:
    settings = {"form": "gated", "outcome": "a", "terms": {"a": 1.0, "b": 0.2}}
    assert composed(settings, a=0.0, b=1.0) == 0.0
    assert composed(settings, a=1.0, b=0.5) == pytest.approx(1.1)


def test_gate_of_a_single_term() -> None:
    settings = {"outcome": "a", "terms": {"a": 0.6, "b": 0.3, "c": {"weight": 0.1, "gate": "a"}}}
    assert composed(settings, a=0.0, b=1.0, c=1.0) == pytest.approx(0.3)
    assert composed(settings, a=1.0, b=1.0, c=1.0) == pytest.approx(1.0)


def test_penalty_costs_what_is_missing_and_never_pays() -> None:
    settings = {"outcome": "a", "terms": {"a": 1.0, "slow": {"weight": 0.1, "form": "penalty", "gate": "a"}}}
    assert composed(settings, a=1.0, slow=1.0) == 1.0
    assert composed(settings, a=1.0, slow=0.0) == pytest.approx(0.9)
    assert composed(settings, a=0.0, slow=0.0) == 0.0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_gated_wrong_answer_never_beats_a_right_one(b: float, c: float, other: float) -> None:
    settings = yaml.safe_load((CONF / "spider_gated.yaml").read_text())
    wrong = composed(settings, execution=0.0, syntax=1.0, process=b, efficiency=c)
    right = composed(settings, execution=1.0, syntax=1.0, process=other, efficiency=0.0)
    assert wrong < right


@pytest.mark.parametrize("status", ["lost", "cancelled"])
def test_infrastructure_failures_are_excluded(status: str) -> None:
    composition = Composition.from_mapping({"terms": {"a": 1.0}})
    result = score(TASK, trajectory(status=status), composition, functions(a=1.0))
    assert (result.valid, result.components) == (False, {})


@pytest.mark.parametrize("status", ["failed", "timeout", "crashed"])
def test_agent_failures_are_scored_unless_told_otherwise(status: str) -> None:
    for on_failure, valid in (("score", True), ("exclude", False)):
        composition = Composition.from_mapping({"terms": {"a": 1.0}, "on_failure": on_failure})
        assert score(TASK, trajectory(status=status), composition, functions(a=0.0)).valid is valid


def test_unscorable_is_excluded_and_said(caplog: pytest.LogCaptureFixture) -> None:
    def judge(task: Task, trajectory: Trajectory) -> float:
        raise Unscorable("the judge is down")

    assert not score(TASK, trajectory(), Composition.from_mapping({"terms": {"judge": 1}}), {"judge": judge}).valid
    assert "the judge is down" in caplog.text


def test_generic_terms() -> None:
    terms = generic(max_calls=5)
    assert [terms["efficiency"](TASK, trajectory(n)) for n in (0, 1, 3, 5, 9)] == [0.0, 1.0, 0.5, 0.0, 0.0]
    assert terms["efficiency"](TASK, trajectory(1, status="crashed")) == 0.0
    assert terms["succeeded"](TASK, trajectory()) == 1.0
    reported = trajectory(reported={"reward": 0.25, "style": 0.5})
    assert (terms["reported"](TASK, reported), reported_component("style")(TASK, reported)) == (0.25, 0.5)
    with pytest.raises(Unscorable, match="no reward was reported"):
        terms["reported"](TASK, trajectory())
    with pytest.raises(ValueError, match="max_calls >= 2"):
        generic(max_calls=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"term": {"a": 1}}, "did you mean 'terms'"),
        ({"terms": {"a": 1}, "outcome": "b"}, "did you mean 'a'"),
        ({"terms": {"a": 1}, "form": "gate"}, "did you mean 'gated'"),
        ({"terms": {"a": {"weigth": 1}}}, "did you mean 'weight'"),
        ({"terms": {"a": {"gate": "b"}}}, "has no weight"),
        ({"terms": {"a": 1, "b": {"weight": 1, "gate": "c"}}, "outcome": "a"}, "unknown gate"),
        ({"terms": {"a": {"weight": 1, "gate": "a"}}}, "gated on itself"),
        ({"terms": {"a": True}}, "finite number"),
        ({"terms": {"a": 1, "b": 2}}, "name the outcome term"),
        ({"terms": {}}, "at least one term"),
        ({"terms": {"a": {"weight": -1, "form": "penalty"}}}, "would pay"),
        ({"terms": {"a": 1}, "on_failure": "skip"}, "unknown on_failure"),
    ],
)
def test_bad_compositions_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Composition.from_mapping(settings)


def test_unknown_terms_and_values_that_are_no_numbers() -> None:
    composition = Composition.from_mapping({"terms": {"executon": 1.0}})
    with pytest.raises(ValueError, match="did you mean 'execution'"):
        score(TASK, trajectory(), composition, functions(execution=1.0, syntax=0.0))
    with pytest.raises(ValueError, match="must be finite"):
        score(TASK, trajectory(), Composition.from_mapping({"terms": {"a": 1.0}}), functions(a=float("nan")))
