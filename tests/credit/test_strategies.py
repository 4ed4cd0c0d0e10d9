"""The strategies against the recorded arithmetic of their definitions, and the laws that tie them together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax.credit import CreditConfig, DynamicGamma, assign
from tests.credit.samples import trajectory

ROOT = Path(__file__).parents[2]
CASES = json.loads((ROOT / "tests/golden/credit_strategies.json").read_text())["cases"]


def cases(what: str) -> list[dict[str, Any]]:
    found = [case for case in CASES if case["what"] == what]
    assert found
    return found


def config_of(case: dict[str, Any]) -> CreditConfig:
    strategy, _, form = case["kind"].partition("_")
    dynamic = {"longer_than": 0, "form": form} if form else {}
    return CreditConfig.from_mapping(
        {
            "strategy": strategy,
            "gamma": case["gamma"] or 0.85,
            "normalize": case["normalize"],
            "direction": case["direction"],
            "dynamic": dynamic,
        }
    )


def test_weights_equal_the_recorded_ones() -> None:
    for case in cases("weights"):
        weights = assign(trajectory(case["K"]), 1.0, config_of(case)).weights
        np.testing.assert_allclose(weights, case["weights"], rtol=1e-12, err_msg=str(case))


@pytest.mark.parametrize("case", cases("credited_reward"), ids=lambda case: case["mode"])
def test_credited_rewards_with_intermediate_ones(case: dict[str, Any]) -> None:
    mode, _, normalize = case["mode"].partition("_")
    strategy = "exponential" if mode == "allocate" else mode
    for floor, expected in ((None, case["credit"]), (-0.2, case["credit_after_min_reward_clip"])):
        config = CreditConfig.from_mapping(
            {
                "strategy": strategy,
                "gamma": case["gamma"],
                "normalize": normalize or "none",
                "min_reward": floor,
                "apply_to": "reward",
            }
        )
        given = assign(trajectory(5, rewards=case["intermediate"]), case["final_reward"], config)
        np.testing.assert_allclose(given.credits, expected, rtol=1e-12)


def test_floor_and_its_count() -> None:
    for case in cases("negative_final"):
        config = CreditConfig(
            strategy="exponential", gamma=0.85, normalize=case["normalize"], min_reward=-0.2, apply_to="reward"
        )
        given = assign(trajectory(5), case["final_reward"], config)
        np.testing.assert_allclose(given.credits, case["credit_after_min_reward_clip"], rtol=1e-12)
        assert given.clipped == np.mean(np.array(case["credit"]) < -0.2)


def test_agent_weights_act_on_the_advantage() -> None:
    (case,) = cases("agent_weight")
    for rescale, expected in ((False, case["raw"]), (True, case["mean_one_normalised"])):
        config = CreditConfig(
            strategy="exponential",
            normalize="none",
            agent_weight=case["agent_weight"],
            rescale_agent_weight=rescale,
        )
        given = assign(trajectory(agents=case["agents"]), 1.0, config)
        advantages = case["rollout_advantage"] * given.weights * given.agent_factors
        np.testing.assert_allclose(advantages, expected, rtol=1e-12)


def test_component_is_counted_alone_or_masked_afterwards() -> None:
    (case,) = cases("component_of_interest")
    for order in ("filter_then_weight", "weight_then_mask"):
        config = CreditConfig(
            strategy="exponential",
            normalize="none",
            component="exec",
            component_order=order,  # type: ignore[arg-type]
        )
        given = assign(trajectory(agents=case["agents"]), 1.0, config)
        np.testing.assert_allclose(case["rollout_advantage"] * given.weights, case[order], rtol=1e-12)
        assert given.loss_weights.tolist() == [0.0, 1.0, 1.0, 0.0, 1.0]


def test_component_and_agent_patterns_match_whole_names() -> None:
    agents = ["write", "rewrite", "check"]
    only_write = assign(trajectory(agents=agents), 1.0, CreditConfig(component="write"))
    assert only_write.loss_weights.tolist() == [1.0, 0.0, 0.0]
    # The exact name wins over a pattern that also matches, wherever it stands.
    weights = {".*write": 0.5, "write": 2.0}
    assert assign(trajectory(agents=agents), 1.0, CreditConfig(agent_weight=weights)).agent_factors.tolist() == [
        2,
        0.5,
        1,
    ]


def test_reward_of_an_unselected_call_goes_to_the_selected_one_before_it() -> None:
    one = trajectory(agents=["check", "write", "check", "write"], rewards=[0.1, 0.2, 0.4, 0.8])
    given = assign(one, 0.0, CreditConfig(strategy="return", normalize="none", gamma=1.0, component="write"))
    np.testing.assert_allclose(given.credits, [0.0, 1.4, 0.0, 0.8])


@given(st.integers(1, 40), st.floats(0.05, 1.0), st.floats(-2, 2), st.sampled_from(["none", "mean", "sum"]))
def test_gamma_one_is_uniform(count: int, total: float, reward: float, normalize: Any) -> None:
    exponential = assign(trajectory(count), total, CreditConfig(strategy="exponential", gamma=1.0, normalize=normalize))
    uniform = assign(trajectory(count), total, CreditConfig(strategy="uniform", normalize=normalize))
    np.testing.assert_allclose(exponential.weights, uniform.weights, rtol=1e-12)
    np.testing.assert_allclose(exponential.credits, uniform.credits, rtol=1e-12)


@given(
    st.integers(1, 40),
    st.floats(0.05, 1.0),
    st.floats(-2, 2),
    st.sampled_from(["uniform", "exponential", "dynamic", "return", "terminal"]),
)
def test_sums_and_means(count: int, gamma: float, total: float, strategy: Any) -> None:
    split = assign(trajectory(count), total, CreditConfig(strategy=strategy, gamma=gamma, normalize="sum"))
    assert split.credits.sum() == pytest.approx(total, abs=1e-12)
    if strategy == "terminal":  # whatever the normalisation
        return
    mean = assign(trajectory(count), total, CreditConfig(strategy=strategy, gamma=gamma, normalize="mean"))
    assert mean.weights.mean() == pytest.approx(1.0)


@given(st.integers(1, 40), st.floats(0.05, 1.0))
def test_directions_mirror_each_other(count: int, gamma: float) -> None:
    from_end = assign(trajectory(count), 1.0, CreditConfig(strategy="exponential", gamma=gamma))
    from_start = assign(
        trajectory(count), 1.0, CreditConfig(strategy="exponential", gamma=gamma, direction="from_start")
    )
    np.testing.assert_allclose(from_end.weights, from_start.weights[::-1], rtol=1e-12)


def test_uniform_equals_identical_on_the_advantage() -> None:
    for normalize in ("none", "mean"):
        uniform = assign(trajectory(7), 0.3, CreditConfig(strategy="uniform", normalize=normalize))  # type: ignore[arg-type]
        identical = assign(trajectory(7), 0.3, CreditConfig(strategy="identical"))
        np.testing.assert_array_equal(uniform.weights, identical.weights)


def test_dynamic_gamma_begins_beyond_ten() -> None:
    dynamic, fixed = (
        CreditConfig(strategy="dynamic", normalize="none"),
        CreditConfig(strategy="exponential", normalize="none"),
    )
    np.testing.assert_array_equal(assign(trajectory(10), 1, dynamic).weights, assign(trajectory(10), 1, fixed).weights)
    long = assign(trajectory(12), 1, dynamic).weights
    np.testing.assert_allclose(long[[0, 3, 11]], [0.9**11, (0.9 - 0.6 / 11) ** 8, 1.0])
    assert long[0] > assign(trajectory(12), 1, fixed).weights[0]  # early steps are not drowned
    assert long.argmin() == 3


def test_dynamic_over_training_falls_with_progress() -> None:
    config = CreditConfig(strategy="dynamic", normalize="none", dynamic=DynamicGamma(over="training"))
    for progress, gamma in ((0.0, 0.9), (0.5, 0.8), (1.0, 0.7)):
        np.testing.assert_allclose(
            assign(trajectory(12), 1.0, config, progress=progress).weights, gamma ** np.arange(11.0, -1, -1)
        )
    with pytest.raises(ValueError, match="progress must be in"):
        assign(trajectory(12), 1.0, config, progress=1.2)


def test_weight_zero_agent_is_masked() -> None:
    given = assign(trajectory(agents=["plan", "exec"]), 1.0, CreditConfig(agent_weight={"plan": 0.0}))
    assert given.loss_weights.tolist() == [0.0, 1.0]
    config = CreditConfig(component="exec", min_reward=-0.2, apply_to="reward")
    nobody = assign(trajectory(agents=["plan"]), 1.0, config)
    assert nobody.loss_weights.tolist() == nobody.weights.tolist() == [0.0]


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'exponential'"):
        CreditConfig.from_mapping({"strategy": "exponentail"})
    with pytest.raises(ValueError, match="did you mean 'min_reward'"):
        CreditConfig.from_mapping({"minreward": -0.2})
    with pytest.raises(ValueError, match="did you mean 'longer_than'"):
        CreditConfig.from_mapping({"dynamic": {"longer": 3}})
    for bad in ({"gamma": 0.0}, {"gamma": 1.5}, {"gamma": "0.9"}, {"component": "("}, {"agent_weight": {"a": None}}):
        with pytest.raises(ValueError, match="credit"):
            CreditConfig.from_mapping(bad)
    with pytest.raises(ValueError, match=r"min_reward: -0.2 is a floor .* apply_to: advantage .* set apply_to: reward"):
        CreditConfig(min_reward=-0.2)
    with pytest.raises(ValueError, match="from the end only"):
        CreditConfig(strategy="return", direction="from_start")


def test_terminal_leaves_every_reward_where_it_came() -> None:
    one = trajectory(agents=["write", "check", "write", "check"], rewards=[0.1, 0.2, 0.4, 0.8])
    for normalize in ("none", "mean", "sum"):
        given = assign(one, 1.0, CreditConfig(strategy="terminal", normalize=normalize))  # type: ignore[arg-type]
        np.testing.assert_allclose(given.credits, [0.1, 0.2, 0.4, 1.8])
    selected = assign(one, 1.0, CreditConfig(strategy="terminal", component="write"))
    np.testing.assert_allclose(selected.credits, [0.3, 0.0, 2.2, 0.0])
    assert selected.weights.tolist() == [0, 0, 1, 0]


ALL = st.sampled_from(["identical", "uniform", "exponential", "dynamic", "return", "terminal"])


@given(ALL, st.sampled_from(["none", "mean", "sum"]), st.lists(st.floats(-1, 1), min_size=2, max_size=15))
def test_balanced_is_what_adds_up(strategy: Any, normalize: Any, rewards: list[float]) -> None:
    config = CreditConfig(strategy=strategy, normalize=normalize, gamma=0.7)
    if config.unbalanced is None:
        credits = assign(trajectory(len(rewards), rewards=rewards), 1.0, config).credits
        assert credits.sum() == pytest.approx(1.0 + sum(rewards))
    elif strategy != "return":  # normalised, it adds up until something is reported on the way
        assert assign(trajectory(len(rewards)), 1.0, config).credits.sum() != pytest.approx(1.0)


@pytest.mark.parametrize("name", ["identical", "uniform", "exponential", "dynamic", "return", "terminal"])
def test_shipped_configurations_load(name: str) -> None:
    text = (ROOT / f"conf/credit/{name}.yaml").read_text()
    assert text.startswith("# ")
    config = CreditConfig.from_mapping(yaml.safe_load(text))
    assert config.strategy == name
    assert config.gamma == 0.85
