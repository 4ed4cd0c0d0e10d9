"""Token log-probs at the loss entries, and nowhere else.

Hidden states are gathered before the head and the head is applied in chunks that the backward pass recomputes, so
logits of all tokens, [B,T,V], never exist. Shapes: B rows, T tokens, N loss entries, D embedding, V vocabulary.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from lightning_jax.model.sharding import ShardingRules, gathered, out_spec


def ancestor_mask(subtree_end: jax.Array) -> jax.Array:
    """i32[B,T] → bool[B,T,T]: token i (axis 1) sees token j (axis 2) iff j <= i < subtree_end[j]."""
    place = jnp.arange(subtree_end.shape[1])
    before = place[None, :] <= place[:, None]
    return before[None] & (place[None, :, None] < subtree_end[:, None, :])


def gather_entries(hidden: jax.Array, source: jax.Array, rules: ShardingRules) -> jax.Array:
    """hidden [B,T,D], source i32[B,N] → [B,N,D]."""
    rows = jax.lax.broadcasted_iota(jnp.int32, source.shape, 0)
    return hidden.at[rows, source].get(out_sharding=out_spec(rules, "batch", None, None))


def token_logprobs(
    entries: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
    head: jax.Array,
    *,
    chunk: int,
    entropy_gradient: bool,
    rules: ShardingRules,
) -> tuple[jax.Array, jax.Array]:
    """log π(target) and entropy H = lse(z) - Σ softmax(z)·z, both f32[B,N], at logits z = head·h / temperature.

    entries [B,N,D]; targets i32[B,N]; temperature f32[B,N]; head [V,D]. chunk: entries of a row whose logits exist at
    a time (0: all of them, kept for the backward pass). entropy_gradient=False: entropy is only a metric.
    """
    weight = gathered(head.astype(entries.dtype), rules, "vocab", None)

    def one(h: jax.Array, target: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows, number, width = h.shape
        # One axis of entries: over two, XLA's CPU product for the head's gradient takes half as long again.
        z = jnp.einsum(
            "nd,vd->nv",
            h.reshape(rows * number, width),
            weight,
            preferred_element_type=jnp.promote_types(h.dtype, jnp.float32),
            out_sharding=out_spec(rules, "batch", "vocab"),
        )
        z = z / t.reshape(-1)[:, None]
        lse = jax.nn.logsumexp(z, axis=-1)
        hit = target.reshape(-1)[:, None] == jax.lax.broadcasted_iota(jnp.int32, (1, z.shape[-1]), 1)
        logp = jnp.sum(jnp.where(hit, z, 0.0), axis=-1) - lse  # a gather would not do over a split vocabulary
        if not entropy_gradient:
            z, lse = jax.lax.stop_gradient((z, lse))
        entropy = lse - jnp.sum(jnp.exp(z - lse[..., None]) * z, axis=-1)
        layout = out_spec(rules, "batch", None)  # named, because with one row it could not be told
        unflat = partial(jax.lax.reshape, new_sizes=(rows, number), out_sharding=layout)
        return unflat(logp), unflat(entropy)

    count = entries.shape[1]
    if chunk == 0 or count <= chunk:
        return one(entries, targets, temperature)
    chunks = -(-count // chunk)

    def split(x: jax.Array, filling: float) -> jax.Array:
        widths = [(0, 0), (0, chunks * chunk - count)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, constant_values=filling)
        return jnp.moveaxis(x.reshape((x.shape[0], chunks, chunk, *x.shape[2:])), 1, 0)

    body = jax.checkpoint(lambda args: one(*args))
    logp, entropy = jax.lax.map(body, (split(entries, 0), split(targets, 0), split(temperature, 1)))
    return _join(logp)[:, :count], _join(entropy)[:, :count]


def _join(x: jax.Array) -> jax.Array:
    """[C,B,n] → [B,C·n]."""
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2])
