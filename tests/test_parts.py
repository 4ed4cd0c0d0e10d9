"""What a run's sections ask of one another, before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_jax.credit import score_transitions
from lightning_jax.learner.kl_control import KlMemory, next_coefficient
from lightning_jax.run.parts import Parts, read_parts
from tests.credit.samples import scored, trajectory
from tests.e2e.toy import config


def parts(*overrides: str) -> Parts:
    found = read_parts(config(*overrides))
    found.check_together()
    return found


@pytest.mark.parametrize("advantage", ["turn_gae", "token_gae"])
@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        (("credit=uniform",), "credit.normalize=mean"),
        (("credit=exponential", "credit.normalize=none"), "credit.normalize=none"),
        (("credit=identical", "credit.normalize=sum"), "credit.strategy=identical"),
        (("credit=return", "credit.normalize=sum"), "credit.strategy=return"),
        (("credit=uniform", "credit.normalize=sum", "credit.min_reward=-0.2"), "credit.min_reward=-0.2"),
        (
            ("credit.component=a", "+credit.component_order=weight_then_mask"),
            "credit.component_order=weight_then_mask",
        ),
    ],
)
def test_a_critic_refuses_rewards_that_do_not_add_up(advantage: str, overrides: tuple[str, ...], setting: str) -> None:
    words = ("algo=ppo", f"algo.advantage={advantage}", "credit.apply_to=reward", *overrides)
    with pytest.raises(ValueError, match=rf"algo.advantage={advantage} .* {setting} .* set credit=terminal"):
        parts(*words)
    assert parts(*words, "+credit.allow_double_count=true").credit.allow_double_count


def test_ppo_selects_a_credit_that_fits() -> None:
    chosen = parts("algo=ppo")
    assert (chosen.credit.strategy, chosen.credit.apply_to) == ("terminal", "reward")
    split = parts("algo=ppo", "credit=exponential", "credit.apply_to=reward", "credit.normalize=sum")
    for found in (chosen, split):
        one = trajectory(4, rewards=[0.0, 0.5, 0.0, 0.0])
        transitions, _ = score_transitions([one], [scored(1.0)], found.credit, found.baseline)
        assert sum(t.credit for t in transitions) == pytest.approx(1.5)  # the first call's return, γ = 1
    with pytest.raises(ValueError, match=r"apply_to=advantage hands out weights: set credit=terminal"):
        parts("algo=ppo", "credit=exponential")


def test_the_blogs_settings_act() -> None:
    """γ .9 between the calls of a rollout, and a guard that takes the coefficient from .2 to .3."""
    found = parts("algo=seed_blog")
    one = trajectory(3)
    transitions, _ = score_transitions([one], [scored(1.0)], found.credit, None)
    assert [t.advantage for t in transitions] == pytest.approx([0.81, 0.9, 1.0])
    memory = KlMemory(found.algo.kl_coef, (), 0)
    assert memory.coef == 0.2
    assert next_coefficient(memory, 2.0, 8, found.algo).coef == 0.3


def test_returns_within_calls_take_any_split_but_a_terminal_one() -> None:
    """REINFORCE++ adds nothing up along a rollout: each call is an episode of its own credited reward."""
    for strategy in ("uniform", "identical", "return"):
        parts("algo=reinforce_pp", f"credit={strategy}", "credit.apply_to=reward")
    floored = ("credit=exponential", "credit.normalize=sum", "credit.apply_to=reward", "credit.min_reward=-0.2")
    assert parts("algo=reinforce_pp", *floored).credit.min_reward == -0.2
    with pytest.raises(ValueError, match=r"advantage=return .* credit.strategy=terminal .*credit.strategy=uniform"):
        parts("algo=reinforce_pp", "credit=terminal")


def test_a_baseline_that_nobody_reads_is_refused() -> None:
    words = ("credit.apply_to=reward", "algo.baseline.mean_level=batch")
    with pytest.raises(ValueError, match=r"algo.baseline.mean_level=batch .* algo.advantage=return.*mean_level=none"):
        parts("algo=reinforce_pp", *words)


def test_the_constant_of_an_aggregation_is_the_response_limit() -> None:
    assert parts("algo=dr_grpo", "train.max_tokens=40").algo.constant == 40.0
    assert parts("algo=dr_grpo", "train.max_tokens=40", "algo.aggregation_constant=64").algo.constant == 64.0


@pytest.mark.parametrize(
    ("words", "terms"),
    [
        (("reward=spider",), "reward terms syntax count where the outcome execution failed"),
        (("reward=comprehensive",), "reward terms process count where"),
        (("reward=toy", "+reward.terms.overlong={weight:1.0,form:penalty}"), "reward terms answered, overlong count"),
        (("reward=spider", "algo=dr_grpo"), ""),
        (("reward=spider", "algo=dapo"), ""),
        (("reward=spider_gated",), ""),
        (("reward=execution",), ""),
        (("reward=spider", "algo=ppo"), ""),
        ((), ""),
    ],
)
def test_the_shaping_trap_is_pointed_out(words: Any, terms: str, caplog: pytest.LogCaptureFixture) -> None:
    parts(*words)
    assert [terms in record.getMessage() for record in caplog.records] == ([True] if terms else [])


@pytest.mark.parametrize("words", [("credit.apply_to=reward",), ("credit=terminal",)])
def test_credited_rewards_and_group_baselines_are_refused_at_the_start(words: Any) -> None:
    with pytest.raises(ValueError, match="allow_pooled: true"):
        parts(*words)
