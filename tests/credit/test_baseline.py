"""Group baselines: recorded values of the named estimators, exact zeros, and indifference to order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax.credit import BaselineConfig, group_advantages, summary

CASES = json.loads((Path(__file__).parents[1] / "golden/group_advantages_rollout.json").read_text())["cases"]
GRPO = BaselineConfig(std_level="group")
CONFIGS = {
    "grpo": GRPO,
    "grpo_no_std(dr_grpo)": BaselineConfig(),
    "rloo_vectorized": BaselineConfig(rloo=True),
}
LEVELS = [BaselineConfig(m, s) for m in ("group", "batch") for s in ("none", "group", "batch")]  # type: ignore[arg-type]
REWARDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.1, 0.3, 0.4, 1.0]), st.booleans()),
    min_size=1,
    max_size=24,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['group']}-{case['estimator']}")
def test_recorded_estimators(case: dict[str, Any]) -> None:
    expected = np.array(case["advantage_per_sequence"])
    sizes = {key: case["index"].count(key) for key in case["index"]}
    # A group of one: the recorded GRPO gives back the raw reward; here it is 0, there is nothing to compare with.
    expected[[sizes[key] == 1 for key in case["index"]]] = 0.0
    result = group_advantages(case["scores"], case["index"], CONFIGS[case["estimator"]])
    np.testing.assert_allclose(result.advantages, expected, atol=1e-9)


def test_zero_variance_is_exactly_zero_where_rounding_would_not_be() -> None:
    values = [0.1] * 3
    assert (np.float64(values) - np.mean(values)).any()  # the naive formula is not zero
    for config in LEVELS:
        result = group_advantages(values, ["a"] * 3, config)
        assert not result.advantages.any()
        assert result.groups[0].zero_variance


@given(st.integers(1, 64), st.sampled_from([0.1, 0.3, 0.7, 1 / 3, -0.2, 1e9 + 0.1]), st.sampled_from(LEVELS))
def test_all_equal_groups_get_zero(size: int, value: float, config: BaselineConfig) -> None:
    assert not group_advantages([value] * size, ["a"] * size, config).advantages.any()


def test_constant_groups_are_told_apart_by_outcome() -> None:
    rewards, keys = (
        [1.0, 1.0, 0.4, 0.4, 0.3, 0.3, 1.0, 0.0, 0.7],
        ["won", "won", "lost", "lost", "x", "x", "m", "m", "one"],
    )
    outcomes = [1.0, 1.0, 0.0, 0.0, 0.3, 0.3, 1.0, 0.0, 0.7]
    result = group_advantages(rewards, keys, BaselineConfig(), outcomes=outcomes)
    spread = {group.key: (group.spread, group.zero_variance) for group in result.groups}
    assert spread == {
        "won": ("all_pass", True),
        "lost": ("all_fail", True),
        "x": ("other", True),
        "m": ("mixed", False),
        "one": ("other", False),
    }
    figures = summary(result)
    assert figures["baseline/zero_variance"] == 3 / 5
    assert figures["baseline/zero_variance_all_fail"] == 1 / 5
    assert figures["baseline/singletons"] == 1


def test_shaping_in_a_group_that_failed_throughout() -> None:
    rewards, outcomes = [0.4, 0.0, 0.0, 0.0], [0.0] * 4
    trapped = group_advantages(rewards, ["a"] * 4, GRPO, outcomes=outcomes).advantages
    right = group_advantages([1.0, 0.4, 0.4, 0.4], ["a"] * 4, GRPO, outcomes=[1.0, 0, 0, 0]).advantages
    np.testing.assert_allclose(trapped, right, atol=1e-4)  # parsing is paid like being right
    strict = BaselineConfig(std_level="group", zero_variance_of="outcome")
    assert not group_advantages(rewards, ["a"] * 4, strict, outcomes=outcomes).advantages.any()


@given(REWARDS, st.sampled_from([*LEVELS, BaselineConfig(rloo=True)]), st.randoms())
def test_order_does_not_matter(rows: list[tuple[str, float, bool]], config: BaselineConfig, random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)

    def advantages(some: list[tuple[str, float, bool]]) -> np.ndarray:
        keys, rewards, valid = zip(*some, strict=True)
        return group_advantages(list(rewards), list(keys), config, valid=list(valid)).advantages

    np.testing.assert_allclose(advantages(rows)[order], advantages([rows[i] for i in order]), atol=1e-12)


@given(REWARDS, st.sampled_from([*LEVELS, BaselineConfig(rloo=True)]))
def test_invalid_rollouts_change_nothing(rows: list[tuple[str, float, bool]], config: BaselineConfig) -> None:
    kept = [row for row in rows if row[2]]
    full = group_advantages([r for _, r, _ in rows], [k for k, _, _ in rows], config, valid=[v for _, _, v in rows])
    alone = group_advantages([r for _, r, _ in kept], [k for k, _, _ in kept], config)
    mask = np.array([valid for _, _, valid in rows])
    np.testing.assert_allclose(full.advantages[mask], alone.advantages, atol=1e-12)
    assert not full.advantages[~mask].any()


def test_batch_levels_by_hand() -> None:
    rewards, keys = [1.0, 0.0, 0.5, 0.3], ["a", "a", "b", "b"]
    std = np.std(rewards, ddof=1) + 1e-6
    lite = group_advantages(rewards, keys, BaselineConfig("group", "batch")).advantages
    np.testing.assert_allclose(lite, np.array([0.5, -0.5, 0.1, -0.1]) / std)
    batch = group_advantages(rewards, keys, BaselineConfig("batch", "batch", ddof=0, eps=0.0)).advantages
    np.testing.assert_allclose(batch, (np.array(rewards) - 0.45) / np.std(rewards))
    raw = group_advantages(rewards, keys, BaselineConfig("none", "none")).advantages
    np.testing.assert_array_equal(raw, rewards)


OUTCOME_LEVELS = [
    BaselineConfig(m, s, zero_variance_of="outcome")  # type: ignore[arg-type]
    for m in ("group", "batch")
    for s in ("none", "group", "batch")
]


@pytest.mark.parametrize("config", OUTCOME_LEVELS, ids=lambda c: f"{c.mean_level}-{c.std_level}")
def test_outcomes_decide_at_every_level(config: BaselineConfig) -> None:
    """Group a failed throughout however it was shaped; b got equal totals for unequal outcomes; c is mixed."""
    rewards, keys = [0.4, 0.0, 0.5, 0.5, 1.0, 0.0], list("aabbcc")
    outcomes = [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    found = group_advantages(rewards, keys, config, outcomes=outcomes).advantages
    np.testing.assert_array_equal(found[:2], 0.0)
    assert np.abs(found).max() < 2.0  # nothing was divided by eps
    if config.pooled:
        np.testing.assert_array_equal(found[2:4], 0.0)
    else:
        spread = 1.0 if config.std_level == "none" else np.std(rewards, ddof=1)
        np.testing.assert_allclose(found[2:4], 0.1 / spread, rtol=1e-5)
    assert found[4] > 0 > found[5]


def test_contradictory_settings_are_refused() -> None:
    for bad, words in (
        ({"mean_level": "none", "std_level": "group"}, "set mean_level too"),
        ({"rloo": True, "std_level": "group"}, "rloo needs"),
        ({"mean_level": "none", "zero_variance_of": "outcome"}, "compares no outcomes; set mean_level"),
        ({"ddof": 2}, "ddof must be 0 or 1"),
        ({"std_levl": "group"}, "did you mean 'std_level'"),
        ({"mean_level": "groups"}, "did you mean 'group'"),
    ):
        with pytest.raises(ValueError, match=words):
            BaselineConfig.from_mapping(bad)
    with pytest.raises(ValueError, match="one length"):
        group_advantages([1.0], ["a", "b"], GRPO)
    with pytest.raises(ValueError, match="not finite"):
        group_advantages([float("nan"), 1.0], ["a", "a"], GRPO)
