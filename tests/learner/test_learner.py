"""The learner as a whole: on-policy ratio, steps, critic, KL, supervised learning, recompiles, bad gradients."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from lightning_jax.batch import BatchConfig
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.kl_control import KlMemory, next_coefficient
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.metrics import DESCRIPTIONS
from lightning_jax.learner.optimizer import OptimizerConfig, schedule
from tests.batch.examples import agent_calls, transition
from tests.learner.small import BATCH, MODEL, learner, params


def test_on_policy_update_and_supervised_learning() -> None:
    """Ratio exactly 1, params stay valid, and cross-entropy learns a map of 8 words in seconds."""
    small = learner(learning_rate=1e-2, aggregation="token-mean")
    state = small.init(params())
    before = state["params"]
    state, metrics = small.update(state, agent_calls(1))
    assert metrics["learner/ratio_mean"] == metrics["learner/ratio_max"] == 1.0
    assert metrics["learner/clip_fraction"] == 0.0
    assert metrics["learner/steps_count"] == 1.0
    assert 0 < metrics["learner/rho_ess_fraction"] <= 1
    assert metrics["batch/sharing_factor"] > 1
    assert set(metrics) <= set(DESCRIPTIONS)
    assert np.isfinite(np.asarray(before["embed"])).all()  # an engine may still be serving these
    assert not np.array_equal(before["embed"], state["params"]["embed"])

    words = [transition([1, 2, 10 + i], [30 + i, 3], rollout=f"r{i}", task=f"t{i}") for i in range(8)]
    losses = []
    for _ in range(60):
        state, metrics = small.supervised(state, words)
        losses.append(metrics["learner/loss"])
    assert losses[0] > 3
    assert losses[-1] < 0.1
    logp = small.logprobs(state, words)
    assert min(float(x.sum()) for x in logp.values()) > np.log(0.5)
    assert set(metrics) <= set(DESCRIPTIONS)


def test_policy_gradient_prefers_what_is_rewarded() -> None:
    """Two answers to one prompt, advantage +1 and -1: the first must become likelier, the second rarer."""
    small = learner(learning_rate=3e-3, tis=None)  # every call claims one and the same rollout_logp
    state = small.init(params())
    calls = [
        transition([1, 2, 3], [5], rollout="good", advantage=1.0),
        transition([1, 2, 3], [6], rollout="bad", advantage=-1.0),
    ]
    before = small.logprobs(state, calls)
    for _ in range(5):
        state, _ = small.update(state, calls)
    after = small.logprobs(state, calls)
    assert after["good/0"][0] > before["good/0"][0] + 0.1
    assert after["bad/0"][0] < before["bad/0"][0] - 0.1


def test_critic_epochs_kl_and_no_recompile_after_warm_up() -> None:
    """PPO with everything on: old log-probs, value warm-up, reference KL; two buckets of two row counts each."""
    small = learner(
        BatchConfig(buckets=(32, 64), micro_batch_tokens=256),
        learning_rate=3e-3,
        critic=True,
        critic_warmup=1,
        whiten_advantages=True,
        mini_batches=2,
        epochs=2,
        kl_coef=0.05,
        entropy_coef=0.01,
        kl_control="adaptive",
        kl_target=1e-3,
        kl_horizon=10.0,
    )
    state = small.init(params())
    start = jax.device_get(state)
    small.warm_up(state)
    jax.tree.map(np.testing.assert_array_equal, start, jax.device_get(state))
    compiled = small.compiled
    for seed in range(3):
        state, metrics = small.update(state, agent_calls(seed, tasks=2 + seed))
        assert metrics["learner/policy_frozen"] == float(seed == 0)
        assert metrics["learner/steps_count"] == 4.0
        assert set(metrics) <= set(DESCRIPTIONS)
        assert all(np.isfinite(v) for v in metrics.values())
    assert small.compiled == compiled
    assert metrics["learner/kl_nat"] > 0
    assert metrics["learner/ratio_max"] > 1
    assert metrics["learner/kl_coef"] != pytest.approx(0.05)
    assert int(state["updates"]) == 3
    assert int(state["step"]) == 12
    assert np.abs(np.asarray(state["params"]["value"]["weight"])).max() > 0
    jax.tree.map(np.testing.assert_array_equal, start["reference"], jax.device_get(state["reference"]))
    assert sorted(small.shapes) == [(1, 64, 64), (2, 32, 32), (4, 64, 64), (8, 32, 32)]


def test_nothing_to_learn_and_bad_gradients_leave_the_parameters_alone() -> None:
    small = learner()
    state = small.init(params())
    flat = [replace(s, advantage=0.0) for s in agent_calls(1)]
    after, metrics = small.update(state, flat)
    assert after["params"] is state["params"]
    assert metrics["learner/steps_count"] == 0
    assert metrics["batch/zero_advantage_fraction"] == 1
    assert int(after["updates"]) == 1
    broken = [replace(s, advantage=float("nan")) for s in agent_calls(1)]
    before = jax.device_get(after["params"])
    after, metrics = small.update(after, broken)
    assert metrics["learner/skipped_steps_count"] == 1
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(after["params"]))


def test_kl_guard_raises_holds_and_decays() -> None:
    config = AlgoConfig(kl_coef=0.1, kl_control="guard", kl_blowup=0.5, kl_max=0.3)
    memory = KlMemory(0.1, (0.0, 0.0, 0.0), 0)
    trace = []
    for kl in [0.1, 0.1, 2.0] + [0.0] * 13:
        memory = next_coefficient(memory, kl, 8, config)
        trace.append((round(memory.coef, 4), memory.fired))
    assert trace[:3] == [(0.1, False), (0.1, False), (0.3, True)]
    assert trace[3:13] == [(0.3, False)] * 10
    assert [c for c, _ in trace[13:]] == [0.27, 0.243, 0.2187]


def test_schedules() -> None:
    rate = schedule(OptimizerConfig(schedule="cosine", warmup_steps=4, total_steps=12), peak=1.0)
    assert [float(rate(i)) for i in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert float(rate(8)) == pytest.approx(0.5)
    assert float(rate(12)) == pytest.approx(0.0, abs=1e-6)


def test_config_errors_name_values_and_mend() -> None:
    with pytest.raises(ValueError, match=r"'eps_hi' \(did you mean 'eps_high'\?\)"):
        AlgoConfig.from_mapping({"eps_hi": 0.3})
    assert AlgoConfig.from_mapping({"name": "x", "eps_low": 0.0, "baseline": {}}).eps_low == 0.0
    with pytest.raises(ValueError, match=r"kl_control='guard' with kl_coef=0.0"):
        AlgoConfig(kl_control="guard")
    with pytest.raises(ValueError, match="total_steps=0 above"):
        OptimizerConfig(schedule="cosine")
    tree = params()
    with pytest.raises(ValueError, match=r"embed has shape \(3, 3\)"):
        learner().init({**tree, "embed": np.zeros((3, 3), np.float32)})


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "ppo"])
def test_shipped_algorithms_are_readable(name: str) -> None:
    from pathlib import Path

    import yaml

    values = yaml.safe_load((Path(__file__).parents[2] / "conf" / "algo" / f"{name}.yaml").read_text())
    config = AlgoConfig.from_mapping(values)
    assert OptimizerConfig.from_mapping(values["optimizer"]).learning_rate > 0
    assert config.critic == (name == "ppo")


def test_muon_learns_on_an_explicit_mesh() -> None:
    """Its matrix products carry no sharding types of their own; states must come back as they were laid out."""
    small = Learner(
        MODEL, AlgoConfig(aggregation="token-mean"), BATCH, OptimizerConfig(name="muon", learning_rate=1e-2)
    )
    state = small.init(params())
    laid_out = jax.tree.map(lambda x: x.sharding, state["params"])
    words = [transition([1, 2, 10 + i], [30 + i, 3], rollout=f"r{i}", task=f"t{i}") for i in range(8)]
    losses = []
    for _ in range(40):
        state, metrics = small.supervised(state, words)
        losses.append(metrics["learner/loss"])
    assert losses[-1] < 0.2 < 3 < losses[0]
    assert jax.tree.map(lambda x: x.sharding, state["params"]) == laid_out
    with pytest.raises(ValueError, match="optimizer name='moun'"):
        OptimizerConfig(name="moun")
