"""Optimiser states of every size: eight-bit moments against float32 ones, adapters, frozen parts, offloading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_jax.learner.adam8bit import (
    Quantised,
    block_length,
    dequantise_mu,
    dequantise_nu,
    noise,
    quantise_mu,
    quantise_nu,
    scale_by_adam_8bit,
)
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.optimizer import OptimizerConfig, optimizer
from lightning_jax.publish.checkpoint import Checkpoints
from tests.batch.examples import agent_calls, transition
from tests.learner.small import BATCH, MODEL, learner, params

WORDS = [transition([1, 2, 10 + i], [30 + i, 3], rollout=f"r{i}", task=f"t{i}") for i in range(8)]
ONE_SHAPE = replace(BATCH, short_rows=False)


def curve(optimizer: OptimizerConfig, steps: int = 30) -> list[float]:
    """Supervised losses of a model that has to learn eight words."""
    small = Learner(MODEL, AlgoConfig(aggregation="token-mean"), ONE_SHAPE, optimizer)
    state = small.init(params())
    losses = []
    for _ in range(steps):
        state, metrics = small.supervised(state, WORDS)
        losses.append(metrics["learner/loss"])
    return losses


def test_small_states_follow_the_loss_curve_of_adamw() -> None:
    """Eight bits and a bfloat16 first moment stay within a few per cent of float32 moments all along."""
    settings_ = OptimizerConfig(learning_rate=5e-3, weight_decay=0.01)
    full = np.array(curve(settings_))
    assert full[-1] < 0.1 * full[0]
    for small in (
        replace(settings_, name="adamw8bit", min_size_8bit=1),
        replace(settings_, moment_dtype="bfloat16"),
    ):
        got = np.array(curve(small))
        assert np.abs(got - full).max() < 0.06 * full[0], small
        assert got[-1] < 0.1 * full[0]


def test_adafactor_learns() -> None:
    losses = curve(OptimizerConfig(name="adafactor", learning_rate=2e-2))
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("name", ["adamw", "adamw8bit", "adafactor"])
def test_weight_decay_is_scaled_by_the_learning_rate(name: str) -> None:
    """Without a gradient a matrix moves by -rate·decay·itself, half of it halfway down a linear schedule."""
    config = OptimizerConfig(
        name=name, learning_rate=1e-2, weight_decay=0.1, schedule="linear", total_steps=2, min_size_8bit=1
    )
    tx, tree = optimizer(config), params()
    zeros, state = jax.tree.map(jnp.zeros_like, tree), tx.init(tree)
    for rate in (1e-2, 0.5e-2):
        step, state = tx.update(zeros, state, tree)
        for name_ in ("q", "up"):
            np.testing.assert_allclose(step["layers"][name_], -rate * 0.1 * tree["layers"][name_], rtol=1e-5)
        assert not np.asarray(step["final_norm"]).any()


def test_eps_reaches_the_adam_part_of_muon() -> None:
    """At a gradient of 1, Adam's first step is proportional to 1 / (1 + ε), and what is orthogonalised isn't Adam's."""
    ones = jax.tree.map(jnp.ones_like, params())

    def first_step(eps: float) -> Any:
        tx = optimizer(OptimizerConfig(name="muon", learning_rate=1e-2, eps=eps, grad_clip=None))
        return tx.update(ones, tx.init(params()), params())[0]

    small, large = first_step(1e-8), first_step(1.0)
    for step in (small, large):
        assert float(np.abs(step["final_norm"]).min()) > 0
    np.testing.assert_allclose(large["final_norm"], 0.5 * small["final_norm"], rtol=1e-5)
    np.testing.assert_allclose(large["embed"], 0.5 * small["embed"], rtol=1e-5)


FLOATS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8)


@settings(max_examples=50, deadline=None)
@given(FLOATS, st.floats(0, 0.999))
def test_round_trips_stay_within_the_grid(values: list[float], uniform: float) -> None:
    x = jnp.array([values], jnp.float32)
    u = jnp.full(x.shape, uniform)
    largest = np.abs(np.asarray(x)).reshape(2, 4).max(1).repeat(4)
    back = np.asarray(dequantise_mu(quantise_mu(x, 2, u)))[0]
    assert (np.abs(back - np.asarray(x)[0]) <= largest * (2 / 127) + 1e-12).all()
    square = np.asarray(x * x)
    back = np.asarray(dequantise_nu(quantise_nu(jnp.asarray(square), 2, u)))[0]
    inside = square[0] > 1.1e-7 * largest**2
    np.testing.assert_allclose(back[inside], square[0][inside], rtol=0.07)
    assert ((back > 0) == (square[0] > 0)).all()  # nothing positive is lost: it would be divided by


def test_rounding_is_unbiased_and_a_function_of_the_step() -> None:
    x = jnp.full((1, 4096), 0.3).at[0, 0].set(1.0)
    for number, (quantise, back) in enumerate(((quantise_mu, dequantise_mu), (quantise_nu, dequantise_nu))):
        u = noise(x.shape, jnp.int32(7 + number)).astype(jnp.float32) / 2.0**32
        got = np.asarray(back(quantise(x, 1, u)))[0, 1:]
        assert len(np.unique(got)) == 2
        assert got.mean() == pytest.approx(0.3, abs=0.002)
    np.testing.assert_array_equal(noise((64,), jnp.int32(3)), noise((64,), jnp.int32(3)))
    assert (noise((64,), jnp.int32(3)) != noise((64,), jnp.int32(4))).mean() > 0.9


def test_a_slow_moment_still_decays() -> None:
    """b2 = .999 changes v by a tenth of a per cent a step, a sixtieth of the grid's spacing."""
    tx = scale_by_adam_8bit(0.9, 0.999, min_size=1)
    tree = {"q": jnp.ones((64, 64))}
    state = tx.init(tree)
    step = jax.jit(tx.update)
    _, state = step(tree, state)
    start = float(dequantise_nu(state.nu["q"]).mean())
    zeros = jax.tree.map(jnp.zeros_like, tree)
    for _ in range(200):
        _, state = step(zeros, state)
    assert float(dequantise_nu(state.nu["q"]).mean()) / start == pytest.approx(0.999**200, rel=0.02)


def test_what_stays_in_float32() -> None:
    assert [block_length(n, 256) for n in (576, 64, 4096, 7)] == [192, 64, 256, 7]
    state = scale_by_adam_8bit(min_size=1).init(params())
    assert isinstance(state.mu["layers"]["q"], Quantised)
    for name in ("embed", "final_norm"):
        assert state.nu[name].dtype == jnp.float32
    assert state.nu["layers"]["attn_norm"].dtype == jnp.float32
    big = {"up": jnp.zeros((4, 512, 512))}
    small, plain = (
        sum(x.nbytes for x in jax.tree.leaves(tx.init(big))) for tx in (scale_by_adam_8bit(), optax.adam(1))
    )
    assert small / plain < 0.26


def test_offloaded_state_gives_the_same_bits_and_is_restored_where_it_was(tmp_path: Path) -> None:
    results = []
    for offload in (False, True):
        small = Learner(MODEL, AlgoConfig(), ONE_SHAPE, OptimizerConfig(learning_rate=1e-2, offload=offload))
        state = small.init(params())
        for seed in range(2):
            state, _ = small.update(state, agent_calls(seed))
        results.append(jax.device_get(state))
    jax.tree.map(np.testing.assert_array_equal, *results)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(state["opt_state"]) if x.ndim}
    assert kinds == {"pinned_host"}
    Checkpoints(tmp_path).save(1, state, {})
    restored, _ = Checkpoints(tmp_path).restore(small.init(params()))
    assert {x.sharding.memory_kind for x in jax.tree.leaves(restored["opt_state"]) if x.ndim} == kinds


def lora_learner(**algo: Any) -> Learner:
    config = AlgoConfig.from_mapping({"lora": {"rank": 4, "alpha": 8, "targets": "q|v|o|down"}, **algo})
    return Learner(MODEL, config, ONE_SHAPE, OptimizerConfig(learning_rate=1e-2))


def test_adapters_learn_alone_and_fold_into_the_weights() -> None:
    small = lora_learner(aggregation="token-mean")
    state = small.init(params())
    moments = {jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(state["opt_state"][1][0].mu)[0]}
    assert moments == {f"['lora']['{n}']['{m}']" for n in ("q", "v", "o", "down") for m in "ab"}
    jax.tree.map(np.testing.assert_array_equal, params(), jax.device_get(small.served(state)))  # B = 0
    losses = []
    for _ in range(40):
        state, metrics = small.supervised(state, WORDS)
        losses.append(metrics["learner/loss"])
    assert losses[-1] < 0.3 * losses[0]
    base = {k: v for k, v in state["params"].items() if k != "lora"}
    jax.tree.map(np.testing.assert_array_equal, params(), jax.device_get(base))
    plain = learner(ONE_SHAPE)
    merged = plain.logprobs(plain.init(small.served(state)), WORDS)
    for call, logp in small.logprobs(state, WORDS).items():
        np.testing.assert_allclose(logp, merged[call], rtol=1e-4, atol=1e-5)


def test_the_model_under_the_adapters_is_the_reference() -> None:
    small = lora_learner(kl_coef=0.1)
    state = small.init(params())
    assert "reference" not in state
    for seed in range(2):
        state, metrics = small.update(state, agent_calls(seed))
    assert metrics["learner/kl_nat"] > 0


def test_frozen_parts_do_not_move() -> None:
    small = learner(ONE_SHAPE, frozen=r"embed|layers\.(gate|up|down)|.*norm")
    state, _ = small.update(small.init(params()), agent_calls(0))
    moved = jax.tree.map(lambda a, b: bool((np.asarray(a) != b).any()), state["params"], params())
    assert {name for name, m in moved["layers"].items() if m} == {"q", "k", "v", "o"}
    assert not moved["embed"]
    with pytest.raises(ValueError, match="leaves no parameter to train"):
        learner(ONE_SHAPE, frozen=".*").init(params())
    with pytest.raises(ValueError, match=r"frozen='\('"):
        AlgoConfig(frozen="(")
    with pytest.raises(ValueError, match=r"lora targets='z' matches none"):
        AlgoConfig.from_mapping({"lora": {"targets": "z"}})
