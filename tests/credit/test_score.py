"""Baseline and credit together: where the weights act decides which steps are punished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_jax.credit import BaselineConfig, CreditConfig, score_transitions
from lightning_jax.types import ScoredTransition
from tests.credit.samples import scored, trajectory

CASES = json.loads((Path(__file__).parents[1] / "golden/credit_strategies.json").read_text())["cases"]
ROLLOUT_LEVEL = json.loads((Path(__file__).parents[1] / "golden/agl_rollout_level.json").read_text())
(PLACEMENT,) = [case for case in CASES if case["what"] == "placement"]


def advantages(transitions: list[ScoredTransition]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in transitions:
        found.setdefault(one.rollout_id, []).append(one.advantage)
    return found


@pytest.mark.parametrize(
    ("expected", "settings"),
    [
        ("P3_rollout_advantage_times_weight", {"normalize": "none"}),
        ("P4_rollout_advantage_times_mean_one_weight", {"normalize": "mean"}),
        (
            "P1_weight_reward_then_pool_all_transitions",
            {"normalize": "none", "apply_to": "reward", "allow_pooled": True},
        ),
    ],
)
def test_placement_of_the_weights(expected: str, settings: dict[str, Any]) -> None:
    trajectories = [trajectory(calls, rollout_id=name) for name, _, calls in PLACEMENT["rollouts"]]
    scores = [scored(reward) for _, reward, _ in PLACEMENT["rollouts"]]
    credit = CreditConfig(strategy="exponential", gamma=PLACEMENT["gamma"], **settings)
    transitions, _ = score_transitions(trajectories, scores, credit, BaselineConfig())
    found = advantages(transitions)
    for name, values in PLACEMENT[expected].items():
        np.testing.assert_allclose(found[name], values, atol=1e-12)


@pytest.mark.parametrize("case", ROLLOUT_LEVEL["cases"], ids=lambda case: f"std-{case['norm_by_std']}")
def test_uniform_is_the_rollout_level_advantage(case: dict[str, Any]) -> None:
    """Agent Lightning 1.0's, on four rollouts of 1, 3, 1, 2 calls and a second task of two: one row is one call."""
    names, tasks, rewards = (ROLLOUT_LEVEL[key] for key in ("rollout_id", "uid", "reward"))
    trajectories, scores = [], []
    for name in dict.fromkeys(names):
        rows = [i for i, other in enumerate(names) if other == name]
        trajectories.append(trajectory(len(rows), rollout_id=name, task_id=tasks[rows[0]]))
        scores.append(scored(rewards[rows[0]]))
    baseline = BaselineConfig(std_level="group" if case["norm_by_std"] else "none")
    transitions, _ = score_transitions(trajectories, scores, CreditConfig(), baseline)
    assert [t.rollout_id for t in transitions] == names
    found = [t.advantage for t in transitions]
    np.testing.assert_allclose(found, case["rollout_level_advantage"], rtol=1e-9)
    rows_pooled = np.array(case["row_level_advantage_for_contrast"])
    assert np.abs(rows_pooled - found)[:7].min() > 0.05  # what pooling the calls would have given


def test_invalid_scores_are_left_out_and_masked() -> None:
    trajectories = [trajectory(2, rollout_id=name) for name in "abc"]
    scores = [scored(1.0), scored(0.0), scored(0.0, valid=False)]
    transitions, figures = score_transitions(trajectories, scores, CreditConfig(), BaselineConfig())
    assert advantages(transitions) == {"a": [0.5, 0.5], "b": [-0.5, -0.5], "c": [0.0, 0.0]}
    assert [one.loss_weight for one in transitions] == [1, 1, 1, 1, 0, 0]
    assert figures["reward/invalid_fraction"] == 1 / 3
    assert figures["reward/mean"] == figures["reward/task_mean"] == 0.5


def test_credited_rewards_without_a_baseline_are_returns() -> None:
    credit = CreditConfig(strategy="return", normalize="none", gamma=0.5, apply_to="reward")
    one = trajectory(3, rewards=[0.0, 1.0, 0.0])
    transitions, figures = score_transitions([one], [scored(1.0)], credit, None)
    assert [t.advantage for t in transitions] == [t.credit for t in transitions] == [0.75, 1.5, 1.0]
    assert figures["credit/ignored_step_rewards"] == 0.0


def test_the_floor_acts_on_credited_rewards_and_is_counted() -> None:
    """R = -1 over three calls with one of reward 1: -1/3 is raised to -.2, 2/3 is not."""
    credit = CreditConfig(normalize="sum", apply_to="reward", min_reward=-0.2)
    trajectories = [trajectory(3, rewards=[0.0, 1.0, 0.0]), trajectory(1, rollout_id="o")]
    transitions, figures = score_transitions(trajectories, [scored(-1.0), scored(1.0)], credit, None)
    np.testing.assert_allclose([t.credit for t in transitions], [-0.2, 2 / 3, -0.2, 1.0])
    np.testing.assert_allclose([t.advantage for t in transitions], [-0.2, 2 / 3, -0.2, 1.0])
    assert figures["credit/clipped"] == pytest.approx(1 / 3)  # mean over rollouts of 2/3 and 0


def test_step_rewards_that_a_setting_ignores_are_counted() -> None:
    _, figures = score_transitions([trajectory(2, rewards=[0.0, 1.0])], [scored(1.0)], CreditConfig(), BaselineConfig())
    assert figures["credit/ignored_step_rewards"] == 1.0


def test_step_rewards_add_an_advantage_of_their_own() -> None:
    good, bad = trajectory(2, rewards=[0.0, 1.0], rollout_id="g"), trajectory(2, rewards=[0.0, 0.0], rollout_id="b")
    credit = CreditConfig(gamma=0.5, step_weight=2.0)
    transitions, figures = score_transitions([good, bad], [scored(1.0), scored(1.0)], credit, BaselineConfig())
    # Equal totals: the rollouts' advantage is 0. Step returns .5, 1, 0, 0 around their mean .375, times 2.
    assert advantages(transitions) == {"g": [0.25, 1.25], "b": [-0.75, -0.75]}
    assert figures["credit/ignored_step_rewards"] == 0.0
    with pytest.raises(ValueError, match="counts intermediate rewards twice"):
        CreditConfig(apply_to="reward", step_weight=1.0)


def test_step_rewards_are_compared_within_an_agent() -> None:
    agents = ["plan", "exec"]
    rewards = {"a": [10.0, 1.0], "b": [12.0, 1.0]}
    trajectories = [trajectory(agents=agents, rewards=steps, rollout_id=name) for name, steps in rewards.items()]
    credit = CreditConfig(gamma=0.5, step_weight=1.0, component="plan|exec")
    transitions, _ = score_transitions(trajectories, [scored(0.0)] * 2, credit, BaselineConfig())
    assert advantages(transitions) == {"a": [-1.0, 0.0], "b": [1.0, 0.0]}


def test_credited_rewards_in_a_pooled_baseline_must_be_asked_for() -> None:
    credit = CreditConfig(apply_to="reward")
    with pytest.raises(ValueError, match="allow_pooled: true"):
        score_transitions([trajectory()], [scored(1.0)], credit, BaselineConfig())
    score_transitions([trajectory()], [scored(1.0)], credit, BaselineConfig("batch", "batch"))
    with pytest.raises(ValueError, match="one score per trajectory"):
        score_transitions([trajectory()], [], CreditConfig(), None)


def test_no_trajectories_and_trajectories_without_calls() -> None:
    for apply_to in ("advantage", "reward"):
        credit = CreditConfig(apply_to=apply_to)  # type: ignore[arg-type]
        assert score_transitions([], [], credit, None)[0] == []
        transitions, figures = score_transitions(
            [trajectory(0), trajectory(1)], [scored(0.0), scored(1.0)], credit, None
        )
        assert [one.advantage for one in transitions] == [1.0]
        assert all(np.isfinite(value) for value in figures.values())


@pytest.mark.parametrize("apply_to", ["advantage", "reward"])
def test_agent_factors_go_with_the_transitions(apply_to: Any) -> None:
    """An algorithm that makes its own advantages has nothing else to learn the agents' weights from."""
    one = trajectory(agents=["plan", "exec", "review"])
    credit = CreditConfig(agent_weight={"plan": 0.5, "review": 0.0}, apply_to=apply_to)
    transitions, _ = score_transitions([one], [scored(1.0)], credit, None)
    assert [t.agent_factor for t in transitions] == [0.5, 1.0, 0.0]
    assert [t.loss_weight for t in transitions] == [1.0, 1.0, 0.0]
    assert [t.advantage for t in transitions] == [0.5, 1.0, 0.0]


def test_context_agents_keep_their_place_without_loss() -> None:
    one = trajectory(agents=["write", "check", "write"])
    other = trajectory(agents=["write"], rollout_id="o")
    credit = CreditConfig(strategy="exponential", gamma=0.5, normalize="none", component="write")
    transitions, figures = score_transitions([one, other], [scored(1.0), scored(0.0)], credit, BaselineConfig())
    assert [t.loss_weight for t in transitions] == [1, 0, 1, 1]
    assert [t.advantage for t in transitions] == [0.25, 0.0, 0.5, -0.5]
    assert figures["credit/context_only"] == 0.25
