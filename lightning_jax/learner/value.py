"""The critic of PPO: a linear value head, on the policy's trunk or on a model of its own.

It is read at the source of every loss entry; with turn-level GAE only the first counts, the last prompt token of a
call: the state in which the agent makes it. GAE is host work (`advantages.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lightning_jax.model.transformer import ParameterInfo


def value_parameters(embed_dim: int) -> dict[str, ParameterInfo]:
    """Abstract tree of the head; zeros, so that the first values are 0 and don't disturb the trunk."""
    return {"weight": ParameterInfo((embed_dim,), (None,), 0.0), "bias": ParameterInfo((), (), 0.0)}


def critic_parameters(model: dict[str, Any]) -> dict[str, Any]:
    """The part of a model's tree (abstract or not) that a separate critic has a copy of: all but the head."""
    return {name: model[name] for name in ("embed", "layers", "final_norm")}


def values(head: dict[str, jax.Array], entries: jax.Array) -> jax.Array:
    """entries [B,N,D] → f32[B,N]."""
    return jnp.einsum("bnd,d->bn", entries.astype(jnp.float32), head["weight"]) + head["bias"]


def value_loss(value: jax.Array, old_value: jax.Array, target: jax.Array, clip: float | None) -> jax.Array:
    """½·max((V-R)², (clip(V, V_old±ε)-R)²) per element; clip None: ½(V-R)²."""
    free = jnp.square(value - target)
    if clip is None:
        return 0.5 * free
    held = jnp.clip(value, old_value - clip, old_value + clip)
    return 0.5 * jnp.maximum(free, jnp.square(held - target))
