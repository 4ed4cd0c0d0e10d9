"""Statistics against rliable's and human-eval's numbers, textbook values, and what must hold for any data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.statistics import (
    holm,
    iqm,
    mcnemar,
    mean_interval,
    paired_bootstrap,
    pass_at_k,
    pass_hat_k,
    performance_profile,
    probability_of_improvement,
    probability_of_improvement_interval,
    proportion_interval,
    stratified_bootstrap,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "statistics.json").read_text())
RLIABLE = GOLDEN["rliable"]
A, B = np.asarray(RLIABLE["scores_A"]), np.asarray(RLIABLE["scores_B"])


def test_pass_at_k_is_human_evals() -> None:
    assert GOLDEN["pass_at_k"]
    for case in GOLDEN["pass_at_k"]:
        assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["pass_at_k"], abs=1e-12)


def test_point_estimates_are_rliables() -> None:
    assert iqm(A) == pytest.approx(RLIABLE["iqm_A"], abs=1e-12)
    assert iqm(B) == pytest.approx(RLIABLE["iqm_B"], abs=1e-12)
    assert probability_of_improvement(A, B) == pytest.approx(RLIABLE["prob_improvement_A_over_B"])
    ties = probability_of_improvement(RLIABLE["ties_X"], RLIABLE["ties_Y"])
    assert ties == pytest.approx(RLIABLE["ties_prob_improvement"])
    profile = performance_profile(A, RLIABLE["performance_profile_tau"])
    np.testing.assert_allclose(profile, RLIABLE["performance_profile_A"])


@pytest.mark.parametrize("name", ["A", "B"])
def test_bootstrap_intervals_are_rliables_within_monte_carlo(name: str) -> None:
    low, high = RLIABLE["stratified_bootstrap_95"][name]
    for place, statistic in enumerate((iqm, lambda x: float(x.mean()))):
        found = stratified_bootstrap(RLIABLE[f"scores_{name}"], statistic, resamples=4000, seed=1)
        assert found.low == pytest.approx(low[place], abs=0.003)
        assert found.high == pytest.approx(high[place], abs=0.003)


def test_interval_of_the_probability_of_improvement() -> None:
    found = probability_of_improvement_interval(A, B, resamples=4000, seed=1)
    low, high = RLIABLE["prob_improvement_ci95"]
    assert (found.low, found.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


def test_t_interval_against_scipy_and_one_seed() -> None:
    values = [0.61, 0.58, 0.66]
    found = mean_interval(values)
    expected = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.half_width == pytest.approx(4.302653 * np.std(values, ddof=1) / math.sqrt(3), rel=1e-6)
    assert math.isnan(mean_interval([0.5]).low)


def test_binomial_intervals_against_scipy() -> None:
    for successes, n in ((0, 10), (7, 10), (10, 10), (724, 1034)):
        expected = stats.binomtest(successes, n).proportion_ci(method="wilson")
        found = proportion_interval(successes, n)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    normal = proportion_interval(350, 500, method="normal")
    assert normal.half_width == pytest.approx(1.959964 * math.sqrt(0.7 * 0.3 / 500), rel=1e-6)


def test_mcnemar_by_hand() -> None:
    a = [True] * 6 + [False] + [True] * 5
    b = [False] * 6 + [True] + [True] * 5
    assert mcnemar(a, b) == pytest.approx(2 * (1 + 7) / 2**7)  # 6 against 1 of 7 disagreements
    assert mcnemar(a, a) == 1.0


def test_holm_by_hand() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({}) == {}


def test_paired_bootstrap_sees_what_pairs_show() -> None:
    generator = np.random.default_rng(0)
    difficulty = generator.normal(0, 1, (1, 60))  # shared by both sides: unpaired noise would hide the gain
    a = difficulty + 0.1 + generator.normal(0, 0.05, (3, 60))
    b = difficulty + generator.normal(0, 0.05, (3, 60))
    gain, p_value = paired_bootstrap(a, b, resamples=1000)
    assert gain.low > 0
    assert p_value < 0.01
    assert stats.ttest_ind(a.ravel(), b.ravel()).pvalue > 0.05
    same, certain = paired_bootstrap(a, a, resamples=100)
    assert (same.value, same.low, same.high, certain) == (0, 0, 0, 1)


def test_paired_bootstrap_counts_seeds_as_clusters() -> None:
    """One lucky seed of two is no evidence, however many items it has."""
    a = np.stack([np.full(500, 0.9), np.full(500, 0.5)])
    b = np.full((2, 500), 0.5)
    gain, p_value = paired_bootstrap(a, b, resamples=1000)
    assert gain.low <= 0
    assert p_value > 0.05


@given(st.integers(1, 30), st.data())
def test_pass_hat_k_never_exceeds_pass_at_k(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert 0 <= pass_hat_k(n, c, k) <= pass_at_k(n, c, k) + 1e-12 <= 1 + 1e-9
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert pass_hat_k(n, c, 1) == pytest.approx(c / n)
    # all right, or at least one wrong: the complement with right and wrong exchanged
    assert pass_hat_k(n, c, k) == pytest.approx(1 - pass_at_k(n, n - c, k), abs=1e-9)


scores = st.lists(st.lists(st.integers(0, 4).map(float), min_size=3, max_size=3), min_size=1, max_size=5)


@given(scores, scores)
def test_improvement_is_antisymmetric(a: list[list[float]], b: list[list[float]]) -> None:
    assert probability_of_improvement(a, b) + probability_of_improvement(b, a) == pytest.approx(1)
    assert probability_of_improvement(a, a) == pytest.approx(0.5)


@settings(max_examples=30, deadline=None)
@given(scores, st.integers(0, 10))
def test_bootstrap_is_repeatable_and_bounded(a: list[list[float]], seed: int) -> None:
    np.random.seed(seed)  # the global state must not matter
    first = stratified_bootstrap(a, resamples=50, seed=3)
    np.random.seed(seed + 1)
    assert stratified_bootstrap(a, resamples=50, seed=3) == first
    assert np.min(a) - 1e-9 <= first.low <= first.high <= np.max(a) + 1e-9


@given(st.integers(1, 300), st.data())
def test_wilson_contains_its_estimate(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    found = proportion_interval(successes, n)
    assert 0 <= found.low <= found.value <= found.high <= 1


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_p_value(p_values: dict[str, float]) -> None:
    adjusted = holm(p_values)
    assert all(p_values[name] <= adjusted[name] <= 1 for name in p_values)
    ordered = sorted(p_values, key=p_values.__getitem__)
    assert [adjusted[n] for n in ordered] == sorted(adjusted.values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pass_at_k(4, 5, 1), "c=5"),
        (lambda: proportion_interval(3, 0), "n=0"),
        (lambda: proportion_interval(1, 2, method="exact"), "exact"),
        (lambda: mean_interval([]), "shape"),
        (lambda: mean_interval([1.0, math.nan]), "not finite"),
        (lambda: paired_bootstrap(np.zeros((2, 3)), np.zeros((2, 4))), r"\(2, 4\)"),
        (lambda: probability_of_improvement(np.zeros((2, 3)), np.zeros((2, 4))), "same items"),
    ],
)
def test_errors_name_the_values(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
