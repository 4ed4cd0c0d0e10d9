"""The learner as a whole: on-policy ratio, steps, critic, KL, supervised learning, recompiles, bad gradients."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from lightning_jax.batch import BatchConfig
from lightning_jax.credit import BaselineConfig
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.kl_control import KlMemory, next_coefficient
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.metrics import DESCRIPTIONS
from lightning_jax.learner.optimizer import OptimizerConfig, schedule
from lightning_jax.presets import preset, presets_of
from tests.batch.examples import agent_calls, transition
from tests.learner.small import BATCH, MODEL, learner, params

ONE_SHAPE = replace(BATCH, short_rows=False)


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
        advantage="turn_gae",
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


@pytest.mark.parametrize(("advantage", "critic"), [("turn_gae", "separate"), ("token_gae", "shared")])
def test_values_are_learned_while_the_policy_is_held(advantage: str, critic: str) -> None:
    """During critic_warmup no leaf of the model moves, and the value loss falls."""
    algo = AlgoConfig(advantage=advantage, critic=critic, critic_warmup=20, value_clip=None)
    small = Learner(MODEL, algo, BATCH, OptimizerConfig(learning_rate=1e-2, weight_decay=0.1))
    state = small.init(params())
    calls = [replace(s, credit=float(s.transition.prompt_ids.size % 3)) for s in agent_calls(1, tasks=2)]
    losses = []
    for _ in range(20):
        state, metrics = small.update(state, calls)
        losses.append(metrics["learner/value_loss"])
    assert losses[-1] < 0.7 * losses[0]
    jax.tree.map(np.testing.assert_array_equal, params(), jax.device_get(small.served(state)))
    assert ("critic" in state["params"]) == (critic == "separate")
    state, metrics = small.update(state, calls)
    assert not np.array_equal(params()["embed"], state["params"]["embed"])


def test_rejection_leaves_transitions_out_of_the_denominators() -> None:
    """A transition far from what was sampled changes nothing, as if it had not been there."""
    calls = agent_calls(3, tasks=2)
    plain = learner(tis=None, grad_clip=None)
    logp = plain.logprobs(plain.init(params()), calls)
    near = [replace(s, transition=replace(s.transition, rollout_logps=logp[s.transition.call_id])) for s in calls]
    stray = near[4]
    far = replace(stray, transition=replace(stray.transition, rollout_logps=stray.transition.rollout_logps - 0.1))
    strict = learner(tis=None, grad_clip=None, reject=(0.99, 1.01))
    state, metrics = strict.update(strict.init(params()), [*near[:4], far, *near[5:]])
    assert metrics["learner/rejected_fraction"] == pytest.approx(1 / len(calls))
    want, _ = strict.update(strict.init(params()), [*near[:4], *near[5:]])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state["opt_state"], want["opt_state"]
    )


def test_truncated_answers_can_be_left_out() -> None:
    calls = agent_calls(3, tasks=2)
    cut = replace(calls[2], transition=replace(calls[2].transition, finish_reason="length"))
    small = learner(grad_clip=None, mask_truncated=True)
    state, metrics = small.update(small.init(params()), [*calls[:2], cut, *calls[3:]])
    assert metrics["batch/truncated_transitions_count"] == 1
    want, _ = small.update(small.init(params()), [*calls[:2], *calls[3:]])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), state["opt_state"], want["opt_state"]
    )


@pytest.mark.parametrize("cause", ["mask_truncated", "overlong", "empty", "agent of weight 0"])
def test_rewards_of_calls_left_out_stay_in_their_rollouts_return(cause: str) -> None:
    """A critic that knows nothing, γ = λ = 1: the first call's target is all that the rollout got, 1."""
    first = transition([1, 2], [5, 6], rollout="r", index=0, credit=0.25)
    last = transition([1, 2, 5, 6, 7], [8], rollout="r", index=1, credit=0.75)
    if cause == "mask_truncated":
        last = replace(last, transition=replace(last.transition, finish_reason="length"))
    elif cause == "overlong":
        last = replace(last, transition=replace(last.transition, prompt_ids=np.ones(99, np.int32)))
    elif cause == "empty":
        nothing = np.zeros(0)
        last = replace(
            last,
            transition=replace(
                last.transition, response_ids=nothing.astype(np.int32), rollout_logps=nothing.astype(np.float32)
            ),
        )
    else:
        last = replace(last, loss_weight=0.0, agent_factor=0.0)
    small = learner(
        replace(BATCH, overlong="drop", short_rows=False),
        advantage="turn_gae", lam=1.0, mask_truncated=cause == "mask_truncated",
    )  # fmt: skip
    _, metrics = small.update(small.init(params()), [first, last])
    assert metrics["batch/transitions_count"] == 1
    assert metrics["learner/value_target_mean"] == 1.0


def test_a_critic_survives_an_update_without_anything_to_look_at() -> None:
    small = learner(advantage="turn_gae", mask_truncated=True)
    call = transition([1, 2], [5])
    cut = replace(call, transition=replace(call.transition, finish_reason="length"))
    state, metrics = small.update(small.init(params()), [cut])
    assert metrics["batch/transitions_count"] == metrics["learner/steps_count"] == 0
    assert int(state["updates"]) == 1


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
    memory = KlMemory(0.1, (), 0)
    trace = []
    for kl in [0.1, 0.1, 2.0] + [0.0] * 13:
        memory = next_coefficient(memory, kl, 8, config)
        trace.append((round(memory.coef, 4), memory.fired))
    assert trace[:3] == [(0.1, False), (0.1, False), (0.3, True)]
    assert trace[3:13] == [(0.3, False)] * 10
    assert [c for c, _ in trace[13:]] == [0.27, 0.243, 0.2187]


def test_the_guard_averages_what_was_measured_and_nothing_else() -> None:
    config = AlgoConfig(kl_coef=0.1, kl_control="guard", kl_target=0.2)
    assert config.blowup == pytest.approx(0.6)  # 3 · target where nothing is given
    first = next_coefficient(KlMemory(0.1, (), 0), 1.0, 8, config)
    assert first.fired  # not a third of it
    assert first.recent == (1.0,)
    nothing = next_coefficient(first, float("nan"), 8, config)
    assert nothing == KlMemory(first.coef, (1.0,), first.hold)
    adaptive = AlgoConfig(kl_coef=0.1, kl_control="adaptive")
    assert next_coefficient(KlMemory(0.1, (), 0), float("nan"), 8, adaptive).coef == 0.1


def test_the_guard_can_begin_a_kl_term() -> None:
    config = AlgoConfig(kl_control="guard", kl_allow_enable=True, kl_blowup=0.5, kl_max=0.3)
    assert config.reference
    memory, trace = KlMemory(0.0, (), 0), []
    for kl in [0.1, 5.0] + [0.0] * 12 + [5.0]:
        memory = next_coefficient(memory, kl, 8, config)
        trace.append(memory.coef)
    assert trace[:12] == [0.0] + [0.3] * 11
    assert trace[12:14] == pytest.approx([0.27, 0.243])
    assert trace[14] == 0.3
    small = learner(ONE_SHAPE, kl_control="guard", kl_allow_enable=True, kl_blowup=1e-9, learning_rate=1e-2)
    state = small.init(params())
    for seed in range(2):  # the first update starts at the reference: its KL is 0
        state, metrics = small.update(state, agent_calls(seed))
        assert metrics["learner/kl_coef"] == 0.0
    assert metrics["learner/kl_guard_fired"] == 1.0
    assert float(state["kl"]["coef"]) == np.float32(0.3)


def test_an_update_without_tokens_tells_the_controller_nothing() -> None:
    small = learner(ONE_SHAPE, kl_coef=0.1, kl_control="adaptive", mask_truncated=True, reject=(0.5, 2.0))
    state = small.init(params())
    before = jax.device_get(state["kl"])
    cut = [replace(s, transition=replace(s.transition, finish_reason="length")) for s in agent_calls(0)]
    far = [replace(s, transition=replace(s.transition, rollout_logps=s.transition.rollout_logps - 9)) for s in cut]
    far = [replace(s, transition=replace(s.transition, finish_reason="stop")) for s in far]
    for calls in (cut, far):  # nothing laid out; everything rejected
        state, metrics = small.update(state, calls)
        assert metrics["learner/kl_coef"] == np.float32(0.1)
        jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(state["kl"]))
    state, _ = small.update(state, agent_calls(0))
    assert float(state["kl"]["coef"]) < before["coef"]


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
    with pytest.raises(ValueError, match=r"kl_coef=0.4 is above kl_max=0.3"):
        AlgoConfig(kl_control="guard", kl_coef=0.4)
    with pytest.raises(ValueError, match=r"kl_allow_enable=True with kl_control='adaptive'"):
        AlgoConfig(kl_control="adaptive", kl_coef=0.4, kl_allow_enable=True)
    with pytest.raises(ValueError, match=r"kl_target=0.0, .* must be positive"):
        AlgoConfig(kl_control="adaptive", kl_coef=0.4, kl_target=0.0)
    with pytest.raises(ValueError, match="total_steps=0 above"):
        OptimizerConfig(schedule="cosine")
    with pytest.raises(ValueError, match=r"tis=2.0 and icepop=\(0.5, 2.0\)"):
        AlgoConfig.from_mapping({"icepop": [0.5, 2.0]})
    with pytest.raises(ValueError, match="kl_in=reward with advantage=credit"):
        AlgoConfig(kl_in="reward", kl_coef=0.1)
    with pytest.raises(ValueError, match=r"dual_clip=3.0 acts with loss=ppo only, not cispo"):
        AlgoConfig(loss="cispo")
    with pytest.raises(ValueError, match=r"aggregation_constant=None: give it the response limit"):
        learner(aggregation="constant")
    with pytest.raises(ValueError, match="gspo clips a whole transition, but advantage=return"):
        AlgoConfig(loss="gspo", advantage="return")
    tree = params()
    with pytest.raises(ValueError, match=r"embed has shape \(3, 3\)"):
        learner().init({**tree, "embed": np.zeros((3, 3), np.float32)})


@pytest.mark.parametrize("name", presets_of("algo"))
def test_shipped_algorithms_train(name: str) -> None:
    """Every file is a composition that moves the parameters and reports known, finite figures."""
    values = preset("algo", name)
    algo, optimizer = AlgoConfig.from_mapping(values), OptimizerConfig.from_mapping(values["optimizer"])
    algo = replace(algo, aggregation_constant=algo.aggregation_constant or 8.0)
    assert BaselineConfig.from_mapping(values["baseline"]).pooled != algo.needs_rewards
    small = Learner(MODEL, algo, replace(BATCH, short_rows=False), optimizer)
    state = small.init(params())
    state, metrics = small.update(state, agent_calls(0))
    assert set(metrics) <= set(DESCRIPTIONS)
    assert all(np.isfinite(v) for v in metrics.values())
    moved = not np.array_equal(params()["layers"]["q"], small.served(state)["layers"]["q"])
    assert moved != algo.has_critic  # whose warm-up holds the policy


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
