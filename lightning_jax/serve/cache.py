"""The key/value cache on the device, and attention over it.

Per layer the positions 0..max_length-1 lie in a list of blocks: keys [S,K,h,B], values [S,K,B,h]. Attention adds block
after block with a running maximum and sum (Milakov & Gimelshein 2018); a block that is wholly masked changes no bit, so
blocks beyond the longest live sequence are skipped by `lax.cond` without a row's bits ever depending on its neighbours.
Separate arrays per layer and block are updated in place under donation, and no slice of a big one is ever copied.

S slots, R rows of a prefill, C tokens of a chunk, K key/value heads, G groups, h head size, B positions of a block.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lightning_jax.model.config import ModelConfig

Blocks = list[jax.Array]  # one array per block of positions
Running = tuple[jax.Array, jax.Array, jax.Array]  # maximum, sum of weights, weighted values: of the blocks so far
MASKED = -1e30


def empty_blocks(
    config: ModelConfig, slots: int, length: int, size: int, dtype: str
) -> tuple[list[Blocks], list[Blocks]]:
    """Zeroed keys and values of every layer: [layer][block] arrays."""
    k, h, count = config.num_kv_heads, config.head_dim, length // size
    keys = [[jnp.zeros((slots, k, h, size), dtype) for _ in range(count)] for _ in range(config.num_layers)]
    values = [[jnp.zeros((slots, k, size, h), dtype) for _ in range(count)] for _ in range(config.num_layers)]
    return keys, values


def write_tokens(
    keys: Blocks, values: Blocks, k: jax.Array, v: jax.Array, positions: jax.Array
) -> tuple[Blocks, Blocks]:
    """Write one position of every slot. k, v [S,K,h]; positions i32[S]."""
    rows = jnp.arange(k.shape[0])
    size = keys[0].shape[-1]
    new_keys, new_values = [], []
    for number, (block_k, block_v) in enumerate(zip(keys, values, strict=True)):
        offset = positions - number * size
        offset = jnp.where((offset >= 0) & (offset < size), offset, size)  # size is out of range: dropped
        new_keys.append(block_k.at[rows, :, :, offset].set(k, mode="drop"))
        new_values.append(block_v.at[rows, :, offset].set(v, mode="drop"))
    return new_keys, new_values


def write_chunks(
    keys: Blocks, values: Blocks, k: jax.Array, v: jax.Array, slots: jax.Array, starts: jax.Array
) -> tuple[Blocks, Blocks]:
    """Write a chunk of positions of some slots.

    k [R,K,h,C], v [R,K,C,h]; slots, starts i32[R]; a slot ≥ S is dropped.
    """
    size, count = keys[0].shape[-1], keys[0].shape[0]
    new_keys, new_values = [], []
    for number, (block_k, block_v) in enumerate(zip(keys, values, strict=True)):
        rows = jnp.where(starts // size == number, slots, count)
        new_keys.append(_write_windows(block_k, k, rows, starts % size, axis=3))
        new_values.append(_write_windows(block_v, v, rows, starts % size, axis=2))
    return new_keys, new_values


def _write_windows(buffer: jax.Array, rows: jax.Array, slots: jax.Array, offsets: jax.Array, axis: int) -> jax.Array:
    """buffer[slots[r], ..., offsets[r]:offsets[r]+C along axis, ...] = rows[r]; slots out of range are dropped."""
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2, 3), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, axis)
    )
    return jax.lax.scatter(
        buffer, jnp.stack([slots, offsets], axis=1), rows, numbers, mode=jax.lax.GatherScatterMode.FILL_OR_DROP
    )


def attend(
    q: jax.Array,
    keys: Blocks,
    values: Blocks,
    positions: jax.Array,
    last: jax.Array,
    window: int | None,
    slots: jax.Array | None = None,
) -> jax.Array:
    """Causal attention of T queries per row to the cached keys of its slot.

    q [R,T,K,G,h]; positions i32[R,T] of the queries; last i32: no query that matters lies beyond it; window: keys
    further back are not seen; slots i32[R]: row r looks at slot slots[r] (None: at slot r). Returns [R,T,K,G,h] in
    q's dtype.
    """
    rows, tokens, heads, groups, size_h = q.shape
    size = keys[0].shape[-1]
    scale = size_h**-0.5
    queries = q.transpose(0, 2, 3, 1, 4).reshape(rows, heads, groups * tokens, size_h)
    rows_at = jnp.tile(positions, (1, groups))[:, None, :, None]  # [R,1,G·T,1]

    def add(number: int, state: Running) -> Running:
        block_k, block_v = keys[number], values[number]
        if slots is not None:
            block_k, block_v = block_k.at[slots].get(mode="clip"), block_v.at[slots].get(mode="clip")
        top, total, mixed = state
        scores = jnp.einsum("rkqh,rkhb->rkqb", queries, block_k, preferred_element_type=jnp.float32) * scale
        back = rows_at - (number * size + jnp.arange(size))
        seen = (back >= 0) if window is None else (back >= 0) & (back < window)
        scores = jnp.where(seen, scores, MASKED)
        new_top = jnp.maximum(top, scores.max(-1))
        # A block without a visible key leaves the maximum, scales by exp(0) and adds exact zeros: not one bit changes.
        weights = jnp.where(seen, jnp.exp(scores - new_top[..., None]), 0.0)
        keep = jnp.exp(top - new_top)
        added = jnp.einsum("rkqb,rkbh->rkqh", weights.astype(q.dtype), block_v, preferred_element_type=jnp.float32)
        return new_top, total * keep + weights.sum(-1), mixed * keep[..., None] + added

    shape = queries.shape[:3]
    state: Running = (jnp.full(shape, MASKED), jnp.zeros(shape), jnp.zeros((*shape, size_h)))
    for number in range(len(keys)):
        if number == 0:
            state = add(0, state)
        else:
            needed = number * size <= last
            state = jax.lax.cond(needed, lambda s, number=number: add(number, s), lambda s: s, state)
    _, total, mixed = state
    out = (mixed / jnp.maximum(total, 1e-30)[..., None]).astype(q.dtype)
    return out.reshape(rows, heads, groups, tokens, size_h).transpose(0, 3, 1, 2, 4)
