"""Losses, KL estimators, importance weights, entropy and GAE against vectors of the reference implementations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.gae import explained_variance, rollout_gae, turn_gae, whiten
from lightning_jax.learner.logprobs import token_logprobs
from lightning_jax.learner.losses import KL_ESTIMATORS, POLICY_LOSSES, kl_term, truncated_importance
from lightning_jax.learner.value import value_loss
from lightning_jax.model.sharding import DEFAULT_RULES
from tests.batch.examples import transition

GOLDEN = Path(__file__).parents[1] / "golden"
F32: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-6}


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def row_weights(mask: np.ndarray, aggregation: str, length: int) -> np.ndarray:
    rows = mask.sum(1, keepdims=True)
    weights = {
        "token-mean": mask / mask.sum(),
        "seq-mean-token-sum": mask / mask.shape[0],
        "seq-mean-token-sum-norm": mask / mask.shape[0] / length,
        "seq-mean-token-mean": mask / mask.shape[0] / rows,
    }
    return weights[aggregation]


def policy_cases() -> list[Any]:
    names = {"vanilla": "ppo", "gspo": "gspo", "cispo": "cispo"}
    cases = [c for c in golden("policy_loss")["cases"] if c["loss_mode"] in names]
    return [pytest.param(c, names[c["loss_mode"]], id=f"{c['label']}-{c['loss_agg_mode']}") for c in cases]


@pytest.mark.parametrize(("case", "name"), policy_cases())
def test_policy_losses(case: dict[str, Any], name: str) -> None:
    """Loss, gradient with respect to logp, and clip fractions."""
    file = golden("policy_loss")
    data = {k: np.array(v) for k, v in file["inputs"].items()}
    mask = data["response_mask"]
    weights = row_weights(mask, case["loss_agg_mode"], mask.shape[1])
    config = case["config"]
    dual = config.get("clip_ratio_c")
    algo = AlgoConfig(loss=name, eps_low=config["clip_ratio_low"], eps_high=config["clip_ratio_high"], dual_clip=dual)
    group = jnp.arange(mask.shape[1]) * 0
    tis = jnp.array(file["is_weights_for_TIS_case"]) if "TIS" in case["label"] else jnp.ones(mask.shape)
    # the sequence forms take one advantage per row
    advantage = data["advantages"] if name != "gspo" else np.broadcast_to(data["adv_seq"][:, None], mask.shape)

    def loss(logp: jax.Array) -> tuple[jax.Array, Any]:
        def row(l: jax.Array, o: jax.Array, a: jax.Array, m: jax.Array) -> Any:  # noqa: E741
            return POLICY_LOSSES[name](l, o, a, m, group, algo)

        out = jax.vmap(row)(logp, jnp.array(data["old_log_prob"]), jnp.array(advantage), jnp.array(mask))
        return jnp.sum(weights * tis * out.loss), out

    (value, out), grad = jax.value_and_grad(loss, has_aux=True)(jnp.array(data["log_prob"]))
    np.testing.assert_allclose(value, case["loss"], **F32)
    np.testing.assert_allclose(grad, case["grad_log_prob"], **F32)
    clipped = float((out.clipped * mask).sum() / mask.sum())
    if name != "cispo":  # the reference counts there what PPO would have clipped
        assert clipped == pytest.approx(case["metrics"]["actor/pg_clipfrac"], abs=1e-6)
    dual_clipped = float((out.dual_clipped * mask).sum() / mask.sum())
    assert dual_clipped == pytest.approx(case["metrics"]["actor/pg_clipfrac_lower"], abs=1e-6)


def test_ppo_elementwise() -> None:
    """55 (advantage, log ratio) pairs, dual clip included."""
    file = golden("ppo_elementwise")
    columns = {name: np.array([case[i] for case in file["cases"]], float) for i, name in enumerate(file["columns"])}
    algo = AlgoConfig(eps_low=0.2, eps_high=0.28, dual_clip=3.0)
    advantage, delta = jnp.array(columns["advantage"]), jnp.array(columns[file["columns"][1]])
    zeros = jnp.zeros_like(delta)

    def losses(logp: jax.Array) -> jax.Array:
        return POLICY_LOSSES["ppo"](logp, zeros, advantage, zeros + 1, zeros, algo).loss

    np.testing.assert_allclose(losses(delta), columns[file["columns"][2]], **F32)
    grad = jax.grad(lambda logp: losses(logp).sum())(delta)
    np.testing.assert_allclose(grad, columns[file["columns"][3]], **F32)


def test_kl_estimators() -> None:
    file = golden("kl")
    logp, ref, mask = (jnp.array(file[k]) for k in ("log_prob", "ref_log_prob", "response_mask"))
    seen = set()
    for case in file["cases"]:
        if case["kind"] in KL_ESTIMATORS:
            kl = KL_ESTIMATORS[case["kind"]]
            np.testing.assert_allclose(kl(logp, ref) * mask, np.array(case["per_token"]) * mask, **F32)
            grad = jax.grad(lambda x, kl=kl: (kl(x, ref) * mask).sum() / mask.sum())(logp)
            np.testing.assert_allclose(grad, case["grad_log_prob"], **F32)
            seen.add(case["kind"])
    assert seen == {"k1", "k2", "k3"}


def test_bias_corrected_kl_has_the_reverse_kl_gradient() -> None:
    """∇ of r·k3 is r·d: the unbiased gradient of KL(π‖ref) from samples of π_old."""
    logp, old, ref = jnp.array([-1.0, -2.0, -0.3]), jnp.array([-1.2, -1.5, -0.3]), jnp.array([-0.7, -2.5, -0.9])

    def total(x: jax.Array) -> jax.Array:
        return kl_term(x, ref, jnp.exp(x - old), "k3", True).sum()

    np.testing.assert_allclose(jax.grad(total)(logp), jnp.exp(logp - old) * (logp - ref), rtol=1e-5)


def test_value_loss() -> None:
    file = golden("value_loss")
    data = {k: jnp.array(file[k]) for k in ("vpreds", "values_old", "returns", "response_mask")}
    for case in file["cases"]:
        weights = row_weights(np.array(data["response_mask"]), case["loss_agg_mode"], 7)
        clip = None if case["cliprange_value"] > 1e6 else case["cliprange_value"]

        def loss(v: jax.Array, weights: Any = weights, clip: float | None = clip) -> jax.Array:
            return jnp.sum(weights * value_loss(v, data["values_old"], data["returns"], clip))

        value, grad = jax.value_and_grad(loss)(data["vpreds"])
        np.testing.assert_allclose(value, case["vf_loss"], **F32)
        np.testing.assert_allclose(grad, case["grad_vpreds"], **F32)


def test_token_importance_weights() -> None:
    file = golden("token_importance")
    case = next(c for c in file["cases"] if c["threshold"] == 2.0 and not c["batch_normalize"])
    mask = np.array(file["response_mask"])
    weights = truncated_importance(jnp.array(file["old_log_prob"]), jnp.array(file["rollout_log_prob"]), 2.0)
    np.testing.assert_allclose(weights * mask, np.array(case["weights"]) * mask, **F32)


@pytest.mark.parametrize("chunk", [0, 1])
def test_logprobs_and_entropy(chunk: int) -> None:
    """From hidden states whose head is the identity, so that they are the logits."""
    file = golden("entropy_logprob")
    logits, labels = jnp.array(file["logits"]), jnp.array(file["labels"])
    head = jnp.eye(logits.shape[-1])
    case = next(c for c in file["cases"] if c["loss_agg_mode"] == "token-mean")
    mask = jnp.array(file["mask"])

    def run(z: jax.Array, temperature: float = 1.0) -> tuple[jax.Array, jax.Array]:
        t = jnp.full(labels.shape, temperature)
        return token_logprobs(z, labels, t, head, chunk=chunk, entropy_gradient=True, rules=DEFAULT_RULES)

    logp, entropy = run(logits)
    np.testing.assert_allclose(logp, file["log_probs"], **F32)
    np.testing.assert_allclose(entropy, case["per_token"], **F32)
    np.testing.assert_allclose(run(logits, 0.7)[0], file["log_probs_temperature_0_7"], **F32)
    grad = jax.grad(lambda z: (run(z)[1] * mask).sum() / mask.sum())(logits)
    np.testing.assert_allclose(grad, case["grad_logits"], **F32)


def test_turn_gae() -> None:
    for case in golden("turn_gae")["cases"]:
        got = turn_gae(
            *(np.array(case[k], float) for k in ("rewards", "discounts", "values_with_bootstrap")), case["lam"]
        )
        np.testing.assert_allclose(got, case["advantages"], rtol=1e-9, atol=1e-12)


def test_rollout_gae_does_not_reach_over_rollouts() -> None:
    calls = [transition([1], [1], rollout="a", index=k, credit=c) for k, c in enumerate([0.0, 1.0])]
    calls.append(transition([1], [1], rollout="b", credit=-1.0))
    advantages, targets = rollout_gae(calls, np.array([0.5, 0.25, 0.0]), gamma=0.9, lam=1.0)
    np.testing.assert_allclose(targets, [0.9, 1.0, -1.0])  # λ = 1: discounted returns
    np.testing.assert_allclose(advantages, targets - [0.5, 0.25, 0.0])


def test_whitening_and_explained_variance() -> None:
    x, mask = np.array([1.0, 2.0, 4.0, 100.0]), np.array([True, True, True, False])
    white = whiten(x, mask)
    assert white[mask].mean() == pytest.approx(0, abs=1e-12)
    assert white[mask].std(ddof=1) == pytest.approx(1, rel=1e-6)
    np.testing.assert_array_equal(whiten(x, np.array([True, False, False, False])), 0)
    assert explained_variance(x, x) == 1
    assert explained_variance(np.zeros(4), x) == pytest.approx(0)
