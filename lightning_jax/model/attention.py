"""Attention over rows that lie in causal order: the dense reference and the paths that training may take.

A mask may be any subset of the lower triangle: plain causal rows, packed rows, or tries in depth-first order, where a
token sees its ancestors. Softmax statistics are float32.

Shapes: q [B,T,K,G,h], k and v [B,S,K,h], mask bool [B,T,S] → [B,T,K,G,h].
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

MASKED = -1e30  # finite: a query that may see nothing (padding) gets the mean of the values, never NaN
QUERY_BLOCK = 64  # queries, at least
QUERY_BLOCKS = 16  # at most: each is a program of its own to compile


def dense_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Plain softmax attention; what every other path is tested against."""
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * (q.shape[-1] ** -0.5)
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, MASKED), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """The same for masks within the lower triangle: blocks of queries look at no key beyond their own block.

    Query groups are folded into one batched product per key/value head, the mask is added, and the division by the
    softmax's sum comes last, on the small output.
    """
    length = q.shape[1]
    size = max(QUERY_BLOCK, -(-length // QUERY_BLOCKS))
    blocks = [
        _block(q[:, start:end], k[:, :end], v[:, :end], mask[:, start:end, :end])
        for start in range(0, length, size)
        for end in (min(start + size, length),)
    ]
    return jnp.concatenate(blocks, axis=1)


def _block(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention of some queries over the keys given."""
    rows, queries, kv_heads, groups, size = q.shape
    keys = k.shape[1]
    folded = (q * size**-0.5).transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, groups * queries, size)
    scores = jnp.einsum("bknh,bskh->bkns", folded, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, kv_heads, groups, queries, keys) + jnp.where(mask, 0.0, MASKED)[:, None, None]
    scores -= jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.exp(scores)
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights.astype(v.dtype).reshape(rows, kv_heads, groups * queries, keys)
    attended = jnp.einsum("bkns,bskh->bknh", weights, v, preferred_element_type=jnp.float32)
    attended = attended.reshape(rows, kv_heads, groups, queries, size) / total
    return attended.astype(v.dtype).transpose(0, 3, 1, 2, 4)


def fused_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """JAX's own attention: cuDNN's flash attention on GPUs (16-bit arithmetic only), one plain product elsewhere."""
    rows, length, kv_heads, groups, size = q.shape
    merged = q.reshape(rows, length, kv_heads * groups, size)
    on_gpu = jax.default_backend() == "gpu"
    out = jax.nn.dot_product_attention(merged, k, v, mask=mask[:, None], implementation="cudnn" if on_gpu else "xla")
    return out.reshape(q.shape)


ATTENTIONS: dict[str, Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]] = {
    "blocks": causal_attention,
    "fused": fused_attention,
    "dense": dense_attention,
}
"""Ways to the same result, by name."""
