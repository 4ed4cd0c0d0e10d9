"""The whole objective of several algorithms: what may not change it, and what it may not look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_jax.batch import BatchConfig, MicroBatch, per_token, plan
from lightning_jax.credit import BaselineConfig, CreditConfig, score_transitions
from lightning_jax.learner import objective
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.objective import Setting, extra_arrays, policy_objective
from lightning_jax.model.config import Precision
from lightning_jax.model.sharding import DEFAULT_RULES
from lightning_jax.types import ScoredTransition, Trajectory
from tests.batch.examples import agent_calls, transition
from tests.credit.samples import scored, trajectory
from tests.learner.small import MODEL, params

VALUE = {"weight": np.random.default_rng(9).normal(size=MODEL.embed_dim).astype(np.float32), "bias": np.float32(0.3)}
TREE = {**params(), "value": VALUE}
SCALARS = {"policy_scale": jnp.ones(()), "kl_coef": jnp.float32(0.3)}
ALGORITHMS = {
    "gspo": AlgoConfig(
        loss="gspo", dual_clip=None, eps_low=0.05, eps_high=0.05, tis_level="sequence", mini_batches=2,
        aggregation="seq-mean-token-mean",
    ),
    "cispo with KL and entropy": AlgoConfig(
        loss="cispo", dual_clip=None, eps_low=0.8, eps_high=2.0, kl_coef=0.3, entropy_coef=0.1, mini_batches=2,
        aggregation="token-mean",
    ),
    "ppo with a critic at turns": AlgoConfig(
        advantage="turn_gae", kl_coef=0.3, kl_estimator="k2", mini_batches=2, tis=None, icepop=(0.6, 1.4)
    ),
    "ppo with a critic at tokens": AlgoConfig(
        advantage="token_gae", mini_batches=2, tis_level="sequence", aggregation="constant", aggregation_constant=5.0
    ),
}  # fmt: skip


def drawn(transitions: Sequence[ScoredTransition], seed: int = 0) -> dict[str, list[np.ndarray]]:
    """What else the objective reads, per transition: far enough from the policy that every clip acts somewhere."""
    rng = np.random.default_rng(seed)
    sizes = [s.transition.response_ids.size for s in transitions]
    spread = {"old_logp": 0.4, "ref_logp": 0.6, "old_value": 0.5, "value_target": 1.0}
    means = {"old_logp": -4.5, "ref_logp": -4.5, "old_value": 0.0, "value_target": 0.0}
    return {name: [rng.normal(means[name], width, size) for size in sizes] for name, width in spread.items()}


def on_device(micro: MicroBatch, algo: AlgoConfig, extra: dict[str, list[np.ndarray]], calls: int) -> dict[str, Any]:
    """A micro-batch with the arrays that `algo` reads; V is trained as the learner trains it."""
    batch = {name: jnp.asarray(getattr(micro, name)) for name in micro.__dataclass_fields__}
    for name in extra_arrays(algo):
        if name == "value_weight":
            first = micro.entry_first if algo.advantage == "turn_gae" else np.ones_like(micro.entry_first)
            batch[name] = jnp.asarray(first * (micro.entry_transition >= 0) / calls, jnp.float32)
        else:
            batch[name] = jnp.asarray(per_token(micro, extra[name]))
    return batch


def loss_and_gradient(
    transitions: Sequence[ScoredTransition], config: BatchConfig, algo: AlgoConfig
) -> tuple[float, dict[str, float], Any]:
    """Summed over the micro-batches: loss, metrics' sums, gradient with respect to every leaf."""
    work = plan(transitions, config, aggregation=algo.aggregation, constant=algo.constant)
    extra = drawn(work.transitions)
    setting = Setting(MODEL, algo, Precision(), DEFAULT_RULES)
    differentiate = jax.jit(jax.value_and_grad(partial(policy_objective, setting=setting), has_aux=True))
    loss, sums, grads = 0.0, dict[str, float](), jax.tree.map(np.zeros_like, TREE)
    for micro in work.micro_batches:
        (part, totals), new = differentiate(TREE, on_device(micro, algo, extra, len(work.transitions)), SCALARS)
        loss += float(part)
        sums = {name: sums.get(name, 0.0) + float(value) for name, value in totals["sums"].items()}
        grads = jax.tree.map(lambda a, b: a + np.asarray(b), grads, new)
    return loss, sums, grads


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_padding_and_packing_change_nothing(name: str) -> None:
    """One call a row, one row at a time, against all of them in tries of one micro-batch with room to spare."""
    algo, transitions = ALGORITHMS[name], agent_calls(11, tasks=2)
    alone = BatchConfig(layout="rows", buckets=(48,), micro_batch_tokens=48)
    packed = BatchConfig(buckets=(160,), micro_batch_tokens=320, short_rows=False)
    loss, sums, grads = loss_and_gradient(transitions, alone, algo)
    again, sums_again, grads_again = loss_and_gradient(transitions, packed, algo)
    assert again == pytest.approx(loss, rel=2e-5)
    assert sums_again == pytest.approx(sums, rel=2e-5, abs=1e-5)
    assert 0 < sums["clipped"] < sums["tokens"]  # the clip acts on some
    assert 0 < sums["mismatch_cut"] < sums["tokens"]

    def compare(path: Any, a: np.ndarray, b: np.ndarray) -> None:
        scale = float(np.abs(b).max())
        assert scale > 0 or (not algo.has_critic and "value" in jax.tree_util.keystr(path))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * scale, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(compare, grads_again, grads)


OBSERVED, ASK = range(90, 95), 95  # tokens that nobody sampled; the second is the last of each prompt


def conversation(rng: np.random.Generator) -> list[ScoredTransition]:
    """Two rollouts of one task whose calls each extend the one before by an observation."""
    calls = []
    for rollout in ("a", "b"):
        said = [90, 91, ASK]
        for index in range(3):
            response = rng.integers(1, 80, int(rng.integers(1, 5))).tolist()
            calls.append(
                transition(said, response, rollout=rollout, index=index, advantage=float(rng.normal()), rollout_logp=-4)
            )
            said = [*said, *response, *rng.choice(OBSERVED, 2).tolist(), ASK]
    return calls


@pytest.mark.parametrize("layout", ["trie", "concatenated"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_observations_have_no_gradient(name: str, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With respect to the hidden states: exactly 0 wherever the next token was not sampled, and nowhere else.

    So no observed token is ever a target: not in the policy loss, nor in entropy, KL or the value loss.
    """
    algo, rng = ALGORITHMS[name], np.random.default_rng(2)
    work = plan(conversation(rng), BatchConfig(layout=layout, buckets=(64,), micro_batch_tokens=64))
    setting = Setting(MODEL, algo, Precision(), DEFAULT_RULES)
    extra = drawn(work.transitions)
    seen = {"sampled": 0, "observed": 0}
    for micro in work.micro_batches:
        batch = on_device(micro, algo, extra, len(work.transitions))
        states = jnp.asarray(rng.normal(size=(*micro.tokens.shape, MODEL.embed_dim)), jnp.float32)

        def loss(states: jax.Array, batch: dict[str, Any] = batch) -> jax.Array:
            monkeypatch.setattr(objective, "forward", lambda *_, **__: states)
            return policy_objective(TREE, batch, SCALARS, setting=setting)[0]

        moved = np.abs(np.asarray(jax.grad(loss)(states))).max(-1) > 0
        for row in range(micro.tokens.shape[0]):
            for node, token in enumerate(micro.tokens[row].tolist()):
                inner = node + 1 < micro.subtree_end[row, node]
                ends = inner and int(micro.tokens[row, node + 1]) in OBSERVED  # what comes next is no sample
                kind = "observed" if token in OBSERVED or token == 0 or ends else "sampled"
                assert not (moved[row, node] and kind == "observed"), (row, node)
                seen[kind] += 1 if kind == "observed" else int(moved[row, node])
    assert seen["observed"] > 20
    assert seen["sampled"] > 5


def spoken(name: str, task: str) -> Trajectory:
    """Two calls whose prompt is the task's and whose answers are the rollout's own."""
    said = np.random.default_rng([*name.encode()])
    prompt = np.random.default_rng([*task.encode()]).integers(1, 90, 4).astype(np.int32)
    one = trajectory(2, rollout_id=name, task_id=task)
    calls = [
        replace(
            call,
            prompt_ids=np.append(prompt, np.int32(k)),
            response_ids=said.integers(1, 90, 3).astype(np.int32),
            rollout_logps=np.full(3, -4.0, np.float32),
        )
        for k, call in enumerate(one.transitions)
    ]
    return replace(one, transitions=tuple(calls))


GROUP = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=3)
SHAPE = BatchConfig(buckets=(64,), micro_batch_tokens=256, short_rows=False)
PLAIN = Setting(MODEL, AlgoConfig(), Precision(), DEFAULT_RULES)
GRADIENT = jax.jit(jax.grad(partial(policy_objective, setting=PLAIN), has_aux=True))


@settings(max_examples=15, deadline=None)
@given(
    GROUP.filter(lambda g: min(g) < max(g)),
    GROUP.filter(lambda g: min(g) < max(g)),
    st.tuples(st.sampled_from([0.0, 0.1, 1.0]), st.integers(1, 4)),
    st.sampled_from(["none", "group", "batch"]),
    st.sampled_from(["per-rollout-mean", "token-mean", "prompt-mean", "constant"]),
    st.booleans(),
)
def test_a_zero_variance_group_leaves_the_direction_of_the_others_alone(
    first: list[float], second: list[float], flat: tuple[float, int], std_level: Any, aggregation: str, skip: bool
) -> None:
    """It may shorten the gradient, as it counts in the denominators, and does not turn it."""
    groups = {"t0": first, "t1": second, "t2": [flat[0]] * flat[1]}

    def gradient(tasks: Sequence[str]) -> np.ndarray:
        members = [(f"{task}-{i}", task, reward) for task in tasks for i, reward in enumerate(groups[task])]
        transitions, _ = score_transitions(
            [spoken(name, task) for name, task, _ in members],
            [scored(reward) for _, _, reward in members],
            CreditConfig(strategy="exponential"),
            BaselineConfig(std_level=std_level),
        )
        work = plan(transitions, SHAPE, aggregation=aggregation, skip_zero_advantage=skip)
        grads = jax.tree.map(np.zeros_like, TREE)
        for micro in work.micro_batches:
            batch = {name: jnp.asarray(getattr(micro, name)) for name in micro.__dataclass_fields__}
            grads = jax.tree.map(lambda a, b: a + np.asarray(b), grads, GRADIENT(TREE, batch, SCALARS)[0])
        return np.concatenate([np.asarray(x, np.float64).reshape(-1) for x in jax.tree.leaves(grads)])

    alone, together = gradient(["t0", "t1"]), gradient(["t0", "t1", "t2"])
    lengths = np.linalg.norm(alone) * np.linalg.norm(together)
    assert lengths > 1e-6
    assert alone @ together / lengths == pytest.approx(1.0, abs=1e-6)
