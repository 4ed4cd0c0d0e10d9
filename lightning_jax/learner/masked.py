"""Masked statistics on the device. Where nothing is unmasked they are 0 (or `empty`), never NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def masked_max(x: jax.Array, mask: jax.Array, empty: float = 0.0) -> jax.Array:
    """Largest x where mask is 1; `empty` where the mask is empty."""
    return jnp.max(jnp.where(mask > 0, x, empty))


def group_sum(x: jax.Array, mask: jax.Array, group: jax.Array) -> jax.Array:
    """x, mask f32[N], group i32[N] → f32[N]: at every element the masked sum over the elements of its group."""
    return jnp.sum(_together(mask, group) * x[None, :], axis=1)


def group_mean(x: jax.Array, mask: jax.Array, group: jax.Array) -> jax.Array:
    """The same for the mean; 0 where a group has no unmasked element."""
    return group_sum(x, mask, group) / jnp.maximum(jnp.sum(_together(mask, group), axis=1), 1)


def _together(mask: jax.Array, group: jax.Array) -> jax.Array:
    return (group[:, None] == group[None, :]) & (mask[None, :] > 0)
