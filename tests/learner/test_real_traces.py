"""What an agent really said: the trie gives the loss, log-probs and gradients of one row a call."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lightning_jax.batch import BatchConfig, plan
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.objective import Setting, policy_objective
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.model.config import Precision
from lightning_jax.model.sharding import DEFAULT_RULES
from lightning_jax.model.transformer import forward, head
from lightning_jax.types import ScoredTransition, Transition
from tests.learner.small import MODEL, params

FILE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "agent_calls.json").read_text())
REAL = replace(MODEL, vocab_size=FILE["vocab_size"])
LENGTH = 128
ONE_SHAPE = {"micro_batch_tokens": 1024, "short_rows": False}
LAYOUTS = {
    "trie": BatchConfig(layout="trie", buckets=(512,), **ONE_SHAPE),
    "concatenated": BatchConfig(layout="concatenated", buckets=(256,), **ONE_SHAPE),
    "rows": BatchConfig(layout="rows", buckets=(LENGTH,), **ONE_SHAPE),
}


def real_calls() -> list[ScoredTransition]:
    """The recorded calls; advantages are made up, one a rollout."""
    rng = np.random.default_rng(0)
    advantages = {(c["task"], c["sample"]): float(rng.normal()) for c in FILE["calls"]}
    result = []
    for call in FILE["calls"]:
        rollout = f"{call['task']}/{call['sample']}"
        transition = Transition(
            call_id=f"{rollout}/{call['index']}",
            index=call["index"],
            agent="a",
            prompt_ids=np.array(call["prompt_ids"], np.int32),
            response_ids=np.array(call["response_ids"], np.int32),
            rollout_logps=np.array(call["rollout_logps"], np.float32),
            temperature=1.0,
            policy_version=0,
            finish_reason=call["finish_reason"],
        )
        result.append(
            ScoredTransition(transition, call["task"], rollout, advantages[call["task"], call["sample"]], 1.0, 1.0)
        )
    return result


CALLS = real_calls()
TREE = params(model=REAL)


def separate(calls: list[ScoredTransition]) -> dict[str, np.ndarray]:
    """One call a row, padded on the right."""
    rows = {name: np.zeros((len(calls), LENGTH), np.float32) for name in ("trained", "advantage")}
    tokens = np.zeros((len(calls), LENGTH), np.int32)
    for row, scored in enumerate(calls):
        t = scored.transition
        start, end = t.prompt_ids.size, t.prompt_ids.size + t.response_ids.size
        tokens[row, :end] = np.concatenate([t.prompt_ids, t.response_ids])
        rows["trained"][row, start:end] = 1
        rows["advantage"][row] = scored.advantage
    return {"tokens": tokens, **rows}


@jax.jit
@partial(jax.value_and_grad, has_aux=True)
def written_out(tree: Any, rows: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Mean over tokens of the on-policy surrogate; log-probs f32[K,L] beside it."""
    positions = jnp.broadcast_to(jnp.arange(LENGTH), rows["tokens"].shape)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), (rows["tokens"].shape[0], LENGTH, LENGTH))
    hidden = forward(tree, REAL, rows["tokens"], positions, mask)
    logits = jax.nn.log_softmax(jnp.einsum("btd,vd->btv", hidden, head(tree)))
    logp = jnp.take_along_axis(logits[:, :-1], rows["tokens"][:, 1:, None], axis=-1)[..., 0]
    logp = jnp.pad(logp, ((0, 0), (1, 0)))
    ratio = jnp.exp(logp - jax.lax.stop_gradient(logp))
    return -jnp.sum(rows["trained"] * ratio * rows["advantage"]) / jnp.sum(rows["trained"]), logp


def test_the_traces_are_those_of_an_agent_that_took_turns() -> None:
    """Calls that share prefixes within a task, and rollouts of several calls: else the rest would compare nothing."""
    work = plan(CALLS, LAYOUTS["trie"])
    assert work.stats.tokens_separate > 1.5 * work.stats.tokens_laid
    assert max(s.transition.index for s in CALLS) >= 2
    assert len({s.task_id for s in CALLS}) == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradient(layout: str) -> None:
    (want, _), want_grads = written_out(TREE, separate(CALLS))
    setting = Setting(REAL, AlgoConfig(aggregation="token-mean", tis=None), Precision(), DEFAULT_RULES)
    objective = jax.jit(jax.value_and_grad(partial(policy_objective, setting=setting), has_aux=True))
    scalars = {"policy_scale": jnp.ones(()), "kl_coef": jnp.zeros(())}
    loss, grads = jnp.zeros(()), jax.tree.map(jnp.zeros_like, TREE)
    for micro in plan(CALLS, LAYOUTS[layout], aggregation="token-mean").micro_batches:
        batch = {name: jnp.asarray(getattr(micro, name)) for name in micro.__dataclass_fields__}
        (part, _), new = objective(TREE, batch, scalars)
        loss, grads = loss + part, jax.tree.map(jnp.add, grads, new)
    np.testing.assert_allclose(loss, want, rtol=1e-5, atol=1e-6)

    def compare(path: Any, a: Any, b: Any) -> None:
        # to the largest element: a gradient near 0 is a sum of large terms that cancel
        largest = float(np.abs(b).max())
        assert largest > 0, path
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * largest, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(compare, grads, want_grads)


def test_log_probs_of_the_trie() -> None:
    rows = separate(CALLS)
    (_, logp), _ = written_out(TREE, rows)
    small = Learner(REAL, AlgoConfig(), LAYOUTS["trie"], OptimizerConfig())
    got = small.logprobs(small.init(TREE), CALLS)
    for row, call in enumerate(CALLS):
        want = np.asarray(logp)[row, rows["trained"][row] > 0]
        np.testing.assert_allclose(got[call.transition.call_id], want, rtol=1e-5, atol=1e-5)
