"""Losses, KL estimators, importance weights, entropy and GAE against vectors of the reference implementations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lightning_jax.batch import BatchConfig, plan
from lightning_jax.batch.weights import token_weights
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.kl_control import KlMemory, next_coefficient
from lightning_jax.learner.logprobs import token_logprobs
from lightning_jax.learner.losses import KL_ESTIMATORS, POLICY_LOSSES, kl_term
from lightning_jax.learner.mismatch import importance_weight
from lightning_jax.learner.preparation import rejected
from lightning_jax.learner.value import value_loss
from lightning_jax.model.sharding import DEFAULT_RULES
from tests.batch.examples import transition

GOLDEN = Path(__file__).parents[1] / "golden"
F32: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-6}
X64: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9}


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.fixture(params=[False, True], ids=["f32", "x64"])
def tolerance(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The test runs in float32 and again in float64, where the vectors were made: to 2e-5 and 1e-6."""
    with jax.enable_x64(request.param):
        yield X64 if request.param else F32


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
def test_policy_losses(case: dict[str, Any], name: str, tolerance: dict[str, Any]) -> None:
    """Loss, gradient with respect to logp, and clip fractions."""
    file = golden("policy_loss")
    data = {k: np.array(v) for k, v in file["inputs"].items()}
    mask = data["response_mask"]
    weights = row_weights(mask, case["loss_agg_mode"], mask.shape[1])
    config = case["config"]
    dual = config.get("clip_ratio_c") if name == "ppo" else None
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
    np.testing.assert_allclose(value, case["loss"], **tolerance)
    np.testing.assert_allclose(grad, case["grad_log_prob"], **tolerance)
    clipped = float((out.clipped * mask).sum() / mask.sum())
    if name != "cispo":  # the reference counts there what PPO would have clipped
        assert clipped == pytest.approx(case["metrics"]["actor/pg_clipfrac"], abs=1e-6)
    dual_clipped = float((out.dual_clipped * mask).sum() / mask.sum())
    assert dual_clipped == pytest.approx(case["metrics"]["actor/pg_clipfrac_lower"], abs=1e-6)


def test_ppo_elementwise(tolerance: dict[str, Any]) -> None:
    """55 (advantage, log ratio) pairs, dual clip included."""
    file = golden("ppo_elementwise")
    assert len(file["cases"]) == 55
    columns = {name: np.array([case[i] for case in file["cases"]], float) for i, name in enumerate(file["columns"])}
    algo = AlgoConfig(eps_low=0.2, eps_high=0.28, dual_clip=3.0)
    advantage, delta = jnp.array(columns["advantage"]), jnp.array(columns[file["columns"][1]])
    zeros = jnp.zeros_like(delta)

    def losses(logp: jax.Array) -> jax.Array:
        return POLICY_LOSSES["ppo"](logp, zeros, advantage, zeros + 1, zeros, algo).loss

    np.testing.assert_allclose(losses(delta), columns[file["columns"][2]], **tolerance)
    grad = jax.grad(lambda logp: losses(logp).sum())(delta)
    np.testing.assert_allclose(grad, columns[file["columns"][3]], **tolerance)


def test_kl_estimators(tolerance: dict[str, Any]) -> None:
    file = golden("kl")
    logp, ref, mask = (jnp.array(file[k]) for k in ("log_prob", "ref_log_prob", "response_mask"))
    seen = set()
    for case in file["cases"]:
        if case["kind"] in KL_ESTIMATORS:
            kl = KL_ESTIMATORS[case["kind"]]
            np.testing.assert_allclose(kl(logp, ref) * mask, np.array(case["per_token"]) * mask, **tolerance)
            grad = jax.grad(lambda x, kl=kl: (kl(x, ref) * mask).sum() / mask.sum())(logp)
            np.testing.assert_allclose(grad, case["grad_log_prob"], **tolerance)
            seen.add(case["kind"])
    assert seen == {"k1", "k2", "k3"}


@pytest.mark.parametrize(("estimator", "noise"), [("k1", 1.0), ("k2", 0.0), ("k3", 0.0)])
def test_bias_corrected_kl_has_the_reverse_kl_gradient(estimator: str, noise: float) -> None:
    """∇ is r·d: the unbiased gradient of KL(π‖ref) from samples of π_old; k1 adds r, whose mean over samples is 0."""
    logp, old, ref = jnp.array([-1.0, -2.0, -0.3]), jnp.array([-1.2, -1.5, -0.3]), jnp.array([-0.7, -2.5, -0.9])

    def total(x: jax.Array) -> jax.Array:
        return kl_term(x, ref, jnp.exp(x - old), estimator, True).sum()

    np.testing.assert_allclose(jax.grad(total)(logp), jnp.exp(logp - old) * (logp - ref + noise), rtol=1e-5)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_corrected_estimators_have_the_gradient_of_the_kl_itself(estimator: str) -> None:
    """Summed over all words, each as often as π_old draws it, against the gradient of Σ π log(π/ref)."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(5)
        z, old, ref = (jnp.array(rng.normal(size=7)) for _ in range(3))
        old, ref = jax.nn.log_softmax(old), jax.nn.log_softmax(ref)

        def exact(z: jax.Array) -> jax.Array:
            logp = jax.nn.log_softmax(z)
            return jnp.sum(jnp.exp(logp) * (logp - ref))

        def sampled(z: jax.Array) -> jax.Array:
            logp = jax.nn.log_softmax(z)
            return jnp.sum(jnp.exp(old) * kl_term(logp, ref, jnp.exp(logp - old), estimator, True))

        np.testing.assert_allclose(jax.grad(sampled)(z), jax.grad(exact)(z), rtol=1e-9, atol=1e-12)


def test_value_loss(tolerance: dict[str, Any]) -> None:
    file = golden("value_loss")
    data = {k: jnp.array(file[k]) for k in ("vpreds", "values_old", "returns", "response_mask")}
    assert len(file["cases"]) == 6
    for case in file["cases"]:
        weights = row_weights(np.array(data["response_mask"]), case["loss_agg_mode"], 7)
        clip = None if case["cliprange_value"] > 1e6 else case["cliprange_value"]

        def loss(v: jax.Array, weights: Any = weights, clip: float | None = clip) -> jax.Array:
            return jnp.sum(weights * value_loss(v, data["values_old"], data["returns"], clip))

        value, grad = jax.value_and_grad(loss)(data["vpreds"])
        np.testing.assert_allclose(value, case["vf_loss"], **tolerance)
        np.testing.assert_allclose(grad, case["grad_vpreds"], **tolerance)


def correction(threshold: Any, level: str) -> AlgoConfig:
    """A threshold is a limit, or "low_high" for a band."""
    if isinstance(threshold, str):
        low, high = (float(x) for x in threshold.split("_"))
        return AlgoConfig(tis=None, icepop=(low, high), tis_level=level)
    return AlgoConfig(tis=float(threshold), tis_level=level)


@pytest.mark.parametrize(
    "case",
    [c for c in golden("rollout_correction")["cases"] if c["kind"] == "is"],
    ids=lambda c: f"{c['level']}-{c['threshold']}",
)
def test_importance_weights(case: dict[str, Any], tolerance: dict[str, Any]) -> None:
    """Token and sequence truncation, IcePop's band on both levels."""
    file = golden("rollout_correction")
    old, rollout, mask = (jnp.array(file[k]) for k in ("old_log_prob", "rollout_log_prob", "response_mask"))
    algo = correction(case["threshold"], case["level"])
    group = jnp.zeros(mask.shape[1], jnp.int32)
    weights, _ = jax.vmap(lambda o, r, m: importance_weight(o, r, m, group, algo))(old, rollout, mask)
    np.testing.assert_allclose(weights * mask, np.array(case["weights"]) * np.array(mask), **tolerance)


@pytest.mark.parametrize(
    "case",
    [c for c in golden("rollout_correction")["cases"] if c["kind"] == "rs"],
    ids=lambda c: f"{c['mode']}-{c['threshold']}",
)
def test_rejected_sequences(case: dict[str, Any]) -> None:
    """A row whose mean log ratio lies outside the band loses all of its tokens: the learner's `reject`."""
    assert case["mode"] == "seq_mean_k1"
    file = golden("rollout_correction")
    old, rollout, mask = (np.array(file[k]) for k in ("old_log_prob", "rollout_log_prob", "response_mask"))
    calls = []
    for i, (values, kept) in enumerate(zip(rollout, mask > 0, strict=True)):
        one = transition([1], [1] * int(kept.sum()), rollout=f"r{i}")
        logps = values[kept].astype(np.float32)
        calls.append(replace(one, transition=replace(one.transition, rollout_logps=logps)))
    work = plan(calls, BatchConfig(buckets=(16,)))
    low, high = (float(x) for x in case["threshold"].split("_"))
    got = rejected(work, [values[kept] for values, kept in zip(old, mask > 0, strict=True)], (low, high))
    np.testing.assert_array_equal(~got[:, None] * mask, case["modified_mask"])
    assert 0 < got.sum() < got.size


AREAL = {
    "decoupled_token": AlgoConfig(eps_low=0.2, eps_high=0.2, dual_clip=None, tis=None),
    "clip_higher_dual": AlgoConfig(eps_low=0.2, eps_high=0.28, dual_clip=3.0, tis=None),
    "rs_token_clamp": AlgoConfig(eps_low=0.2, eps_high=0.2, dual_clip=None, tis=2.0),
    "rs_token_mask": AlgoConfig(eps_low=0.2, eps_high=0.2, dual_clip=None, tis=None, icepop=(0.0, 2.0)),
    "rs_token_mask_icepop": AlgoConfig(eps_low=0.2, eps_high=0.2, dual_clip=None, tis=None, icepop=(0.5, 2.0)),
    "sequence(GSPO)": AlgoConfig(loss="gspo", eps_low=0.2, eps_high=0.2, dual_clip=None, tis=None),
}


@pytest.mark.parametrize("label", AREAL)
def test_three_policies(label: str, tolerance: dict[str, Any]) -> None:
    """PPO against π_old with the sampler's weights on top; the mean is over the original count of tokens."""
    case = next(c for c in golden("areal")["cases"] if c["label"] == label)
    data = {k: jnp.array(v) for k, v in golden("policy_loss")["inputs"].items()}
    rollout, mask = jnp.array(golden("rollout_correction")["rollout_log_prob"]), data["response_mask"]
    algo, group = AREAL[label], jnp.zeros(mask.shape[1], jnp.int32)

    def loss(logp: jax.Array) -> jax.Array:
        def row(l: jax.Array, o: jax.Array, a: jax.Array, m: jax.Array, r: jax.Array) -> jax.Array:  # noqa: E741
            return POLICY_LOSSES[algo.loss](l, o, a, m, group, algo).loss * importance_weight(o, r, m, group, algo)[0]

        per_token = jax.vmap(row)(logp, data["old_log_prob"], data["advantages"], mask, rollout)
        return jnp.sum(per_token * mask) / mask.sum()

    value, grad = jax.value_and_grad(loss)(data["log_prob"])
    np.testing.assert_allclose(value, case["loss"], **tolerance)
    np.testing.assert_allclose(grad, case["grad_log_prob"], **tolerance)


def test_per_rollout_mean_of_another_trainer(tolerance: dict[str, Any]) -> None:
    """Its divisor counts rows where ours counts rollouts: 9 against 6, which is all that differs."""
    file = golden("agl_rollout_level")
    case, mask = file["per_rollout_mean_loss"], np.array(file["response_mask"])
    advantages = np.array(next(c for c in file["cases"] if c["norm_by_std"])["rollout_level_advantage"])
    calls = [
        transition([1], [1] * n, task=task, rollout=rollout, index=i)
        for i, (n, task, rollout) in enumerate(zip(file["lengths"], file["uid"], file["rollout_id"], strict=True))
    ]
    weights = token_weights(calls, "per-rollout-mean")
    rows, rollouts = len(calls), len(set(file["rollout_id"]))
    for one in file["cases"]:
        scaled = np.array(one["rollout_level_advantage"]) * weights * rollouts / rows
        np.testing.assert_allclose(scaled[:, None] * mask, one["per_rollout_mean_scaled_advantage"], rtol=1e-9)
    algo = AlgoConfig(eps_low=case["clip_low"], eps_high=case["clip_high"], dual_clip=case["dual_c"])
    advantage = jnp.array(advantages[:, None] * np.ones_like(mask))
    old, mask = jnp.array(case["old_log_prob"]), jnp.array(mask)

    def loss(logp: jax.Array) -> jax.Array:
        out = jax.vmap(lambda *row: POLICY_LOSSES["ppo"](*row, row[3] * 0, algo))(logp, old, advantage, mask)
        return jnp.sum(jnp.array(weights * rollouts / rows)[:, None] * mask * out.loss)

    value, grad = jax.value_and_grad(loss)(jnp.array(case["log_prob"]))
    np.testing.assert_allclose(value, case["loss"], **tolerance)
    np.testing.assert_allclose(grad, case["grad_log_prob"], **tolerance)


def test_clipped_surrogate_and_entropy_of_another_library(tolerance: dict[str, Any]) -> None:
    """Gradients there are with respect to the ratio: d/dlogp = r·d/dr."""
    cases = [c for c in golden("rlax_losses")["cases"] if c["what"] in ("clipped_surrogate_pg_loss", "entropy_loss")]
    assert len(cases) == 3
    for case in cases:
        if case["what"] == "clipped_surrogate_pg_loss":
            ratio, advantage = np.array(case["prob_ratios"]), jnp.array(case["advantages"])
            algo = AlgoConfig(eps_low=case["epsilon"], eps_high=case["epsilon"], dual_clip=None)
            zeros = jnp.zeros_like(advantage)

            def loss(logp: jax.Array, algo: AlgoConfig = algo, a: jax.Array = advantage) -> jax.Array:
                return jnp.mean(POLICY_LOSSES["ppo"](logp, a * 0, a, a * 0 + 1, a * 0, algo).loss)

            value, grad = jax.value_and_grad(loss)(jnp.log(ratio) + zeros)
            np.testing.assert_allclose(value, case["loss"], **tolerance)
            np.testing.assert_allclose(grad, ratio * np.array(case["grad_ratios"]), **tolerance)
        else:
            logits, weights = jnp.array(case["logits"]), jnp.array(case["weights"])

            def negative_entropy(z: jax.Array, w: jax.Array = weights) -> jax.Array:
                ones = jnp.ones(z.shape[:1])
                entropy = token_logprobs(
                    z[None], jnp.zeros((1, z.shape[0]), jnp.int32), ones[None], jnp.eye(z.shape[1]),
                    chunk=0, entropy_gradient=True, rules=DEFAULT_RULES,
                )[1][0]  # fmt: skip
                return -jnp.mean(entropy * w)

            value, grad = jax.value_and_grad(negative_entropy)(logits)
            np.testing.assert_allclose(value, case["loss"], **tolerance)
            np.testing.assert_allclose(grad, case["grad_logits"], **tolerance)


def test_adaptive_controller() -> None:
    cases = [c for c in golden("kl_in_reward_and_controller")["cases"] if c["what"] == "AdaptiveKLController"]
    assert len(cases) == 3
    for case in cases:
        algo = AlgoConfig(
            kl_coef=case["init_kl_coef"], kl_control="adaptive", kl_target=case["target_kl"], kl_horizon=case["horizon"]
        )
        memory, values = KlMemory(algo.kl_coef, (0.0,), 0), []
        for kl, count in case["updates"]:
            memory = next_coefficient(memory, kl, count, algo)
            values.append(memory.coef)
        np.testing.assert_allclose(values, case["values"], rtol=1e-12)


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_logprobs_and_entropy(chunk: int, tolerance: dict[str, Any]) -> None:
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
    np.testing.assert_allclose(logp, file["log_probs"], **tolerance)
    np.testing.assert_allclose(entropy, case["per_token"], **tolerance)
    np.testing.assert_allclose(run(logits, 0.7)[0], file["log_probs_temperature_0_7"], **tolerance)
    grad = jax.grad(lambda z: (run(z)[1] * mask).sum() / mask.sum())(logits)
    np.testing.assert_allclose(grad, case["grad_logits"], **tolerance)
