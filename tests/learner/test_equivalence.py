"""A trie, padding, packing, micro-batches, order and sharding change neither loss nor gradient."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_jax.batch import BatchConfig, plan
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.objective import Setting, policy_objective
from lightning_jax.model.config import Precision
from lightning_jax.model.sharding import DEFAULT_RULES
from lightning_jax.model.transformer import forward, head
from lightning_jax.types import ScoredTransition
from tests.batch.examples import agent_calls, transition
from tests.learner.small import MODEL, learner, params

LENGTH = 64
TREE = params()
LEARNER = learner()
STATE = LEARNER.init(TREE)
Rows = dict[str, np.ndarray]


def assert_close(got: Any, want: Any, rtol: float) -> None:
    """Leaf by leaf, to `rtol` of the leaf's largest element: a gradient near 0 is a sum of large terms that cancel."""

    def compare(path: Any, a: Any, b: Any) -> None:
        np.testing.assert_allclose(
            a, b, rtol=rtol, atol=rtol * float(np.abs(b).max()), err_msg=jax.tree_util.keystr(path)
        )

    jax.tree_util.tree_map_with_path(compare, got, want)


def separate_rows(transitions: list[ScoredTransition], count: int) -> Rows:
    """One sequence per row, right-padded: no trie, no packing, no loss entries."""
    rows: Rows = {
        name: np.zeros((count, LENGTH)) for name in ("tokens", "trained", "rollout_logp", "advantage", "tokens_of")
    }
    rows["temperature"] = np.ones((count, LENGTH))
    for row, scored in enumerate(transitions):
        t = scored.transition
        size, start = t.prompt_ids.size + t.response_ids.size, t.prompt_ids.size
        rows["tokens"][row, :size] = np.concatenate([t.prompt_ids, t.response_ids])
        rows["trained"][row, start:size] = 1
        rows["rollout_logp"][row, start:size] = t.rollout_logps
        rows["advantage"][row] = scored.advantage
        rows["temperature"][row] = t.temperature
        rows["tokens_of"][row] = sum(
            s.transition.response_ids.size for s in transitions if s.rollout_id == scored.rollout_id
        )
    return rows


@jax.jit
def plain_logp(tree: Any, tokens: jax.Array, temperature: jax.Array) -> jax.Array:
    """f32[K,L]: log-prob of every token given those before it, with whole logits."""
    tokens = tokens.astype(jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), (tokens.shape[0], LENGTH, LENGTH))
    hidden = forward(tree, MODEL, tokens, positions, mask)
    logp = jax.nn.log_softmax(jnp.einsum("btd,vd->btv", hidden, head(tree)) / temperature[..., None])
    following = jnp.take_along_axis(logp[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.pad(following, ((0, 0), (1, 0)))


@jax.jit
@jax.value_and_grad
def plain_loss(tree: Any, rows: Rows, rollouts: jax.Array) -> jax.Array:
    """On-policy PPO with token TIS, per-rollout mean, written out."""
    logp = plain_logp(tree, rows["tokens"], rows["temperature"])
    ratio = jnp.exp(logp - jax.lax.stop_gradient(logp))
    tis = jax.lax.stop_gradient(jnp.minimum(jnp.exp(logp - rows["rollout_logp"]), 2.0))
    per_token = rows["trained"] * tis * ratio * rows["advantage"] / (rollouts * jnp.maximum(rows["tokens_of"], 1))
    return -jnp.sum(per_token)


@pytest.mark.parametrize(("layout", "chunk"), [("trie", 0), ("trie", 16), ("rows", 0), ("concatenated", 0)])
def test_loss_and_gradient_equal_those_of_separate_rows(layout: str, chunk: int) -> None:
    transitions = agent_calls(7, tasks=3)
    rollouts = len({s.rollout_id for s in transitions})
    want, want_grads = plain_loss(TREE, separate_rows(transitions, len(transitions)), jnp.float32(rollouts))
    batch_config = BatchConfig(layout=layout, buckets=(32, 64), micro_batch_tokens=64)  # type: ignore[arg-type]
    setting = Setting(MODEL, AlgoConfig(logp_chunk=chunk), Precision(), DEFAULT_RULES)
    scalars = {"policy_scale": jnp.ones(()), "kl_coef": jnp.zeros(())}
    objective = jax.jit(jax.value_and_grad(partial(policy_objective, setting=setting), has_aux=True))
    loss, grads = jnp.zeros(()), jax.tree.map(jnp.zeros_like, TREE)
    micro_batches = plan(transitions, batch_config).micro_batches
    assert len(micro_batches) > 1
    for micro in micro_batches:
        batch = {name: jnp.asarray(getattr(micro, name)) for name in micro.__dataclass_fields__}
        (part, _), new = objective(TREE, batch, scalars)
        loss, grads = loss + part, jax.tree.map(jnp.add, grads, new)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    assert_close(grads, want_grads, 1e-5)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=5)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_logprobs_of_random_tries(pairs: list[tuple[list[int], list[int]]]) -> None:
    """Three-letter sequences: duplicates, prefixes of one another and deep branching are common."""
    calls = [transition(p, r, rollout=f"r{i}") for i, (p, r) in enumerate(pairs)]
    rows = separate_rows(calls, 8)
    want = np.asarray(plain_logp(TREE, rows["tokens"], rows["temperature"]))
    got = LEARNER.logprobs(STATE, calls)
    for row, call in enumerate(calls):
        expected = want[row, rows["trained"][row] > 0]
        np.testing.assert_allclose(got[call.transition.call_id], expected, rtol=1e-5, atol=1e-5)


SETTING = Setting(MODEL, AlgoConfig(), Precision(), DEFAULT_RULES)
OBJECTIVE = jax.jit(jax.value_and_grad(partial(policy_objective, setting=SETTING), has_aux=True))


@settings(max_examples=12, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(
            st.integers(0, 2),  # rollout
            st.lists(st.integers(0, 2), min_size=1, max_size=6),
            st.lists(st.integers(0, 2), min_size=1, max_size=5),
            st.floats(-2, 2, width=32),
        ),
        min_size=1,
        max_size=8,
    ),
    grows=st.booleans(),
)
def test_layouts_of_random_calls(pairs: list[tuple[int, list[int], list[int], float]], grows: bool) -> None:
    """Loss and gradient of every layout are those of separate rows; with `grows` a prompt extends the call before."""
    calls: list[ScoredTransition] = []
    said: dict[int, list[int]] = {}
    for rollout, prompt, response, advantage in pairs:
        prompt = said.get(rollout, []) + prompt if grows and len(said.get(rollout, [])) < 40 else prompt
        said[rollout] = prompt + response
        calls.append(transition(prompt, response, rollout=f"r{rollout}", index=len(calls), advantage=advantage))
    rollouts = jnp.float32(len(said))
    want, want_grads = plain_loss(TREE, separate_rows(calls, 8), rollouts)
    for layout in ("trie", "rows", "concatenated"):
        # one shape for all examples: nothing recompiles
        work = plan(calls, BatchConfig(layout=layout, buckets=(64,), micro_batch_tokens=256, short_rows=False))
        loss, grads = jnp.zeros(()), jax.tree.map(jnp.zeros_like, TREE)
        for micro in work.micro_batches:
            batch = {name: jnp.asarray(getattr(micro, name)) for name in micro.__dataclass_fields__}
            (part, _), new = OBJECTIVE(TREE, batch, {"policy_scale": jnp.ones(()), "kl_coef": jnp.zeros(())})
            loss, grads = loss + part, jax.tree.map(jnp.add, grads, new)
        np.testing.assert_allclose(loss, want, rtol=1e-5, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), grads, want_grads)


def outcome(batch: BatchConfig, transitions: list[ScoredTransition], **algo: Any) -> tuple[Any, dict[str, float]]:
    small = learner(batch, grad_clip=None, **algo)
    state, metrics = small.update(small.init(TREE), transitions)
    first_moment = state["opt_state"][1][0].mu  # (1 - b1)·gradient after the first step
    return jax.device_get(first_moment), metrics


INDEPENDENT = [
    "learner/loss",
    "learner/grad_norm",
    "learner/entropy_nat",
    "learner/gap_nat",
    "learner/rho_ess_fraction",
]


@pytest.mark.parametrize(
    ("batch", "aggregation"),
    [
        (BatchConfig(buckets=(64,), micro_batch_tokens=64), "token-mean"),  # one row at a time
        (BatchConfig(buckets=(48, 128), micro_batch_tokens=512, entries_per_token=0.5), "per-rollout-mean"),
        (BatchConfig(layout="rows", buckets=(64,), micro_batch_tokens=128, short_rows=False), "per-rollout-mean"),
    ],
)
def test_micro_batches_padding_and_packing_change_nothing(batch: BatchConfig, aggregation: str) -> None:
    transitions = agent_calls(11, tasks=2)
    one = BatchConfig(buckets=(128,), micro_batch_tokens=2048)
    want, want_metrics = outcome(one, transitions, aggregation=aggregation)
    got, metrics = outcome(batch, transitions, aggregation=aggregation)
    assert_close(got, want, 1e-5)
    for name in INDEPENDENT:
        assert metrics[name] == pytest.approx(want_metrics[name], rel=1e-5), name


def test_zero_advantage_transitions_are_skipped_without_effect() -> None:
    transitions = agent_calls(13, tasks=2)
    transitions = [replace(s, advantage=0.0) if s.task_id == "t0" else s for s in transitions]
    batch = BatchConfig(buckets=(64,), micro_batch_tokens=64)
    want, want_metrics = outcome(batch, transitions, skip_zero_advantage=False)
    got, metrics = outcome(batch, transitions, skip_zero_advantage=True)
    assert_close(got, want, 1e-5)
    assert metrics["learner/loss"] == pytest.approx(want_metrics["learner/loss"], rel=1e-5)
    assert metrics["batch/trained_tokens"] < want_metrics["batch/trained_tokens"]


def test_order_of_transitions_changes_no_bit() -> None:
    transitions = agent_calls(17)
    results = []
    small = learner(mini_batches=2, epochs=2)
    for calls in (transitions, transitions[::-1]):
        state, metrics = small.update(small.init(TREE), calls)
        results.append((jax.device_get(state), metrics))
    jax.tree.map(np.testing.assert_array_equal, results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
