"""What one micro-batch adds to the loss and to the metrics: unreduced sums, so that micro-batches simply add up.

A micro-batch is a dict of the arrays of `MicroBatch`; a static `Setting` decides which extra ones it has:
old_logp f32[B,N] unless on-policy, ref_logp f32[B,N] with a reference policy, and with a critic
old_value, value_target, value_weight f32[B,N] (weight 0 where V isn't trained).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import jax
import jax.numpy as jnp

from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.logprobs import ancestor_mask, gather_entries, token_logprobs
from lightning_jax.learner.losses import POLICY_LOSSES, kl_term, log_ratio
from lightning_jax.learner.masked import masked_max
from lightning_jax.learner.mismatch import importance_weight
from lightning_jax.learner.value import value_loss, values
from lightning_jax.model.config import ModelConfig, Precision
from lightning_jax.model.sharding import ShardingRules
from lightning_jax.model.transformer import Params, forward, head

Batch = dict[str, jax.Array]
Scalars = dict[str, jax.Array]  # kl_coef, policy_scale: f32[], traced, so that changing them compiles nothing


def extra_arrays(algo: AlgoConfig) -> list[str]:
    """Names of the arrays that the objective reads beside those of `MicroBatch`."""
    names = [] if algo.on_policy else ["old_logp"]
    names += ["ref_logp"] if algo.reference else []
    return names + (["old_value", "value_target", "value_weight"] if algo.has_critic else [])


class Totals(TypedDict):
    """Metrics of a micro-batch: `sums` add up over micro-batches, `maxima` take the larger."""

    sums: dict[str, jax.Array]
    maxima: dict[str, jax.Array]


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything static: closed over by the jitted programs."""

    model: ModelConfig
    algo: AlgoConfig
    precision: Precision
    rules: ShardingRules


@dataclass(frozen=True, slots=True)
class Scored:
    """The policy's view of the loss entries."""

    logp: jax.Array  # f32[B,N]
    entropy: jax.Array  # f32[B,N]
    hidden: jax.Array  # [B,N,D], at the entries' sources


def hidden_at_entries(params: Params, batch: Batch, setting: Setting) -> jax.Array:
    """Forward pass; [B,N,D] at the sources of the loss entries."""
    hidden = forward(
        params,
        setting.model,
        batch["tokens"],
        batch["positions"],
        ancestor_mask(batch["subtree_end"]),
        compute_dtype=setting.precision.compute,
        remat=setting.algo.remat,
        attention=setting.algo.attention,
        lora_scale=1.0 if setting.algo.lora is None else setting.algo.lora.scale,
        rules=setting.rules,
    )
    return gather_entries(hidden, batch["entry_source"], setting.rules)


def score(params: Params, batch: Batch, setting: Setting, *, temperature: jax.Array) -> Scored:
    """Forward pass and log-probs at the loss entries."""
    entries = hidden_at_entries(params, batch, setting)
    logp, entropy = token_logprobs(
        entries,
        batch["entry_target"],
        temperature,
        head(params),
        chunk=setting.algo.logp_chunk,
        entropy_gradient=setting.algo.entropy_coef != 0,
        rules=setting.rules,
    )
    return Scored(logp, entropy, entries)


def critic_values(params: Params, batch: Batch, setting: Setting, trunk: jax.Array) -> jax.Array:
    """V f32[B,N] by the separate critic, or from `trunk` [B,N,D], the policy's hidden states."""
    if "critic" in params:
        trunk = hidden_at_entries(params["critic"], batch, setting)
    return values(params["value"], trunk)


def evaluate(params: Params, batch: Batch, setting: Setting) -> dict[str, jax.Array]:
    """logp f32[B,N], and value f32[B,N] with a critic: π_old, π_ref and V_old come from here."""
    scored = score(params, batch, setting, temperature=batch["entry_temperature"])
    result = {"logp": scored.logp}
    if "value" in params:
        result["value"] = critic_values(params, batch, setting, scored.hidden)
    return result


def policy_objective(params: Params, batch: Batch, scalars: Scalars, *, setting: Setting) -> tuple[jax.Array, Totals]:
    """loss = Σ_t w_t·(ρ_t·L_t - c_H·H_t + β·KL_t) + c_V·Σ_k v_k·L^V_k of this micro-batch."""
    algo = setting.algo
    scored = score(params, batch, setting, temperature=batch["entry_temperature"])
    weight = batch["entry_weight"]
    mask = (weight > 0).astype(jnp.float32)
    old_logp = jax.lax.stop_gradient(scored.logp) if algo.on_policy else batch["old_logp"]

    def row(logp: jax.Array, old: jax.Array, advantage: jax.Array, mask: jax.Array, group: jax.Array) -> Any:
        return POLICY_LOSSES[algo.loss](logp, old, advantage, mask, group, algo)

    policy = jax.vmap(row)(scored.logp, old_logp, batch["entry_advantage"], mask, batch["entry_transition"])
    correct = jax.vmap(partial(importance_weight, config=algo))
    importance, cut = correct(old_logp, batch["entry_rollout_logp"], mask, batch["entry_transition"])
    rho = jnp.exp(log_ratio(old_logp, batch["entry_rollout_logp"]))
    policy_loss = jnp.sum(weight * importance * policy.loss)
    loss = scalars["policy_scale"] * policy_loss
    gap = jnp.abs(old_logp - batch["entry_rollout_logp"])
    sums = {
        "policy_loss": policy_loss,
        "tokens": jnp.sum(mask),
        "entropy": jnp.sum(mask * scored.entropy),
        "clipped": jnp.sum(mask * policy.clipped),
        "dual_clipped": jnp.sum(mask * policy.dual_clipped),
        "ratio": jnp.sum(mask * policy.ratio),
        "old_kl": jnp.sum(mask * (old_logp - scored.logp)),
        "gap": jnp.sum(mask * gap),
        "rho": jnp.sum(mask * rho),
        "rho_squared": jnp.sum(mask * rho * rho),
        "mismatch_cut": jnp.sum(mask * cut),
    }
    maxima = {
        "ratio": masked_max(policy.ratio, mask),
        "rho": masked_max(rho, mask),
        "gap": masked_max(gap, mask),
    }
    if algo.entropy_coef:
        loss = loss - algo.entropy_coef * scalars["policy_scale"] * jnp.sum(weight * scored.entropy)
    if algo.reference:
        ratio = jnp.exp(log_ratio(scored.logp, old_logp))
        if algo.kl_in == "loss":
            kl = kl_term(scored.logp, batch["ref_logp"], ratio, algo.kl_estimator, algo.kl_bias_correction)
            loss = loss + scalars["kl_coef"] * scalars["policy_scale"] * jnp.sum(weight * kl)
        plain = kl_term(scored.logp, batch["ref_logp"], ratio, "k3", False)
        sums["kl"], maxima["kl"] = jnp.sum(mask * plain), masked_max(plain, mask)
    if algo.has_critic:
        # while the policy is held (critic_warmup) the value loss must not move its trunk either
        scale = scalars["policy_scale"].astype(scored.hidden.dtype)
        trunk = scale * scored.hidden + (1 - scale) * jax.lax.stop_gradient(scored.hidden)
        value = critic_values(params, batch, setting, trunk)
        per_turn = value_loss(value, batch["old_value"], batch["value_target"], algo.value_clip)
        critic_loss = jnp.sum(batch["value_weight"] * per_turn)
        loss = loss + algo.value_coef * critic_loss
        sums["value_loss"] = critic_loss
    sums["loss"] = loss
    return loss, jax.lax.stop_gradient(Totals(sums=sums, maxima=maxima))


def supervised_objective(
    params: Params, batch: Batch, scalars: Scalars, *, setting: Setting
) -> tuple[jax.Array, Totals]:
    """Cross-entropy -Σ_t w_t·logp_t at temperature 1, on the same rows."""
    scored = score(params, batch, setting, temperature=jnp.ones_like(batch["entry_temperature"]))
    weight = batch["entry_weight"]
    mask = (weight > 0).astype(jnp.float32)
    loss = -jnp.sum(weight * scored.logp)
    sums = {
        "loss": loss,
        "tokens": jnp.sum(mask),
        "entropy": jnp.sum(mask * scored.entropy),
        "logp": jnp.sum(mask * scored.logp),
    }
    return loss, jax.lax.stop_gradient(Totals(sums=sums, maxima={}))
