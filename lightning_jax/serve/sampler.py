"""Sampling on the device: a pure function of (logits, temperature, top_p, seed, position).

One uniform number per (seed, position) and the inverse of the cumulative distribution, so that a row's draw depends on
nothing else: not on its slot, its neighbours or the step of the engine. The log-prob returned is that of the
distribution drawn from: tempered, and renormalised over what a grammar allows and over the nucleus where top_p < 1
(Holtzman et al. 2020). What such a restriction left of the policy's own distribution is returned as the kept mass.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def uniforms(seeds: jax.Array, positions: jax.Array) -> jax.Array:
    """One number in [0, 1) per row. seeds u32[S], positions i32[S] → f32[S]."""

    def draw(seed: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), position))

    return jax.vmap(draw)(seeds, positions)


def _prefix_sums(x: jax.Array) -> jax.Array:
    """Running sums over the last axis, as a product with a triangle of ones.

    Every column sums the same terms in the same order with some of them zero, and rounding is monotone; so the sums
    never fall and stay equal where a term is zero: a token of probability zero cannot be drawn. A tree-shaped scan
    promises neither.
    """
    width = x.shape[-1]
    triangle = jnp.asarray(np.triu(np.ones((width, width), np.float32)))
    return jnp.matmul(x, triangle, precision=jax.lax.Precision.HIGHEST)


def inverse_cdf(probs: jax.Array, u: jax.Array) -> jax.Array:
    """Index at which the cumulative sum of probs passes u times its total. probs f32[S,V] ≥ 0, u f32[S] → i32[S].

    Two levels (blocks of about √V, then tokens of one block) replace a cumulative sum over V.
    """
    rows, vocab = probs.shape
    width = 1 << max(0, (vocab - 1).bit_length() // 2 + (vocab - 1).bit_length() % 2)
    blocks = -(-vocab // width)
    table = jnp.pad(probs, ((0, 0), (0, blocks * width - vocab))).reshape(rows, blocks, width)
    outer = _prefix_sums(table.sum(-1))
    target = u * outer[:, -1]
    # The second bound keeps the index on a block (token) with mass where u·total rounds up to the total.
    block = jnp.minimum((outer <= target[:, None]).sum(-1), (outer < outer[:, -1:]).sum(-1))
    before = jnp.where(block > 0, jnp.take_along_axis(outer, jnp.maximum(block - 1, 0)[:, None], 1)[:, 0], 0.0)
    inner = _prefix_sums(jnp.take_along_axis(table, block[:, None, None], 1)[:, 0])
    rest = (target - before)[:, None]  # past the block's end, where its two sums round apart: then its last token
    token = jnp.minimum((inner <= rest).sum(-1), (inner < inner[:, -1:]).sum(-1))
    return (block * width + token).astype(jnp.int32)


def nucleus_floor(probs: jax.Array, top_p: jax.Array) -> jax.Array:
    """Smallest probability kept by top_p: the fewest tokens, likeliest first, that reach it. f32[S,V], f32[S] → f32[S].

    Equal probabilities at the border are all kept; rows with top_p ≥ 1 keep everything.
    """
    ordered = jnp.flip(jnp.sort(probs, axis=-1), axis=-1)
    before = jnp.cumsum(ordered, axis=-1) - ordered
    kept = jnp.where(before < top_p[:, None], ordered, jnp.inf)
    return jnp.where(top_p < 1.0, jnp.min(kept, axis=-1), 0.0)


def first_maximum(x: jax.Array) -> jax.Array:
    """Index of the first maximum of each row; two plain reductions, which CPUs vectorise and argmax they don't."""
    vocab = x.shape[-1]
    at_top = jnp.where(x == x.max(-1, keepdims=True), jnp.arange(vocab, dtype=jnp.int32), vocab - 1)
    return at_top.min(-1)


def allowed_tokens(bits: jax.Array, vocab: int) -> jax.Array:
    """Bit masks of a vocabulary, 32 tokens a word, the lowest bit first. bits i32[S,W] → bool[S,V]."""
    words = jax.lax.bitcast_convert_type(bits, jnp.uint32)
    return (
        ((words[..., None] >> jnp.arange(32, dtype=jnp.uint32)) & 1).astype(bool).reshape(bits.shape[0], -1)[:, :vocab]
    )


def restrict(scaled: jax.Array, bits: jax.Array, masked: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take from the rows that are `masked` the tokens their bits leave out.

    scaled f32[S,V] tempered logits; bits i32[S,W]; masked bool[S]. Returns logits f32[S,V] and the mass kept f32[S].
    """

    def apply() -> tuple[jax.Array, jax.Array]:
        kept = jnp.where(allowed_tokens(bits, scaled.shape[-1]) | ~masked[:, None], scaled, -jnp.inf)
        whole, left = jax.nn.logsumexp(scaled, axis=-1), jax.nn.logsumexp(kept, axis=-1)
        return kept, jnp.where(masked, jnp.exp(left - whole), 1.0)

    out: tuple[jax.Array, jax.Array] = jax.lax.cond(
        jnp.any(masked), apply, lambda: (scaled, jnp.ones(scaled.shape[0], scaled.dtype))
    )
    return out


def likeliest(
    logits: jax.Array,
    temperature: jax.Array,
    top_p: jax.Array,
    bits: jax.Array,
    masked: jax.Array,
    count: int,
) -> tuple[jax.Array, jax.Array]:
    """The `count` likeliest tokens of each row, under the distribution that `sample` draws from (its arguments).

    Returns ids i32[S,count] and log-probs f32[S,count], falling; -inf where fewer tokens can be drawn.
    """
    greedy = temperature <= 0.0
    scaled, _ = restrict(logits / jnp.where(greedy, 1.0, temperature)[:, None], bits, masked)
    logps = jax.nn.log_softmax(scaled, axis=-1)
    best, ids = jax.lax.top_k(logps, count)
    narrowed = (top_p < 1.0) & ~greedy
    probs = jnp.exp(logps)
    floor = _floors(probs, top_p, narrowed)[:, None]
    nucleus = jnp.where(probs >= floor, probs, 0.0).sum(-1, keepdims=True)
    inside = jnp.where(jnp.exp(best) >= floor, best - jnp.log(nucleus), -jnp.inf)
    return ids, jnp.where(narrowed[:, None], inside, best)


def _floors(probs: jax.Array, top_p: jax.Array, narrowed: jax.Array) -> jax.Array:
    """`nucleus_floor` of the rows that are `narrowed`, 0 for the others.

    Sorting V costs more than the rest of the step; the branch gives only a floor: rows without top_p keep their bits.
    """
    floor: jax.Array = jax.lax.cond(
        jnp.any(narrowed),
        lambda: nucleus_floor(probs, jnp.where(narrowed, top_p, 1.0)),
        lambda: jnp.zeros_like(top_p),
    )
    return floor


def sample(
    logits: jax.Array,
    temperature: jax.Array,
    top_p: jax.Array,
    seeds: jax.Array,
    positions: jax.Array,
    bits: jax.Array | None = None,
    masked: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draw one token per row.

    logits f32[S,V]; temperature f32[S], 0 is greedy (the log-prob is then that of temperature 1); top_p f32[S];
    seeds u32[S]; positions i32[S] of the token drawn; bits i32[S,W] of the tokens that rows in masked bool[S] may draw.
    Returns tokens i32[S], log-probs f32[S] and the mass kept f32[S]: 1 where nothing was left out.
    """
    greedy = temperature <= 0.0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    mass = jnp.ones(scaled.shape[0], scaled.dtype)
    if bits is not None and masked is not None:
        scaled, mass = restrict(scaled, bits, masked)
    logps = jax.nn.log_softmax(scaled, axis=-1)
    probs = jnp.exp(logps)
    narrowed = (top_p < 1.0) & ~greedy
    floor = _floors(probs, top_p, narrowed)
    kept = jnp.where(probs >= floor[:, None], probs, 0.0)
    drawn = inverse_cdf(kept, uniforms(seeds, positions))
    tokens = jnp.where(greedy, first_maximum(scaled), drawn)
    chosen = jnp.take_along_axis(logps, tokens[:, None], axis=1)[:, 0]
    nucleus = kept.sum(-1)
    return tokens, jnp.where(narrowed, chosen - jnp.log(nucleus), chosen), jnp.where(narrowed, mass * nucleus, mass)
