"""Adam with moments of eight bits (after Dettmers et al. 2021, arXiv 2110.02861), as an optax transformation.

Moments are cut into blocks along the last axis, each with one float32 scale. Three things differ from a plain integer
grid, which gives NaN or stands still:

- the second moment lies on a logarithmic grid over seven decades, so that 1/√v has the same relative error (under 4%)
  for small and large entries of a block; what is positive never becomes 0, or an update would be m/ε;
- the first moment lies on a quadratic grid, finest around 0;
- rounding is stochastic: with b2 = .99 a moment changes by less per step than the grid's spacing, and rounding to the
  nearest would never move it. The noise is a function of step and place, so runs repeat bit for bit on any mesh.

Embeddings, norms, biases and small leaves stay in float32.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from lightning_jax.model.sharding import has_mesh

DECADES = 7.0  # of the second moment, below each block's largest
FULL_PRECISION = ("embed", "head")


class Quantised(NamedTuple):
    """An array as codes of its shape and a scale per block: f32[..., D/block]."""

    codes: jax.Array
    scale: jax.Array


class Adam8bitState(NamedTuple):
    """Moments: Quantised, or float32 arrays for leaves that are kept whole."""

    steps: jax.Array
    mu: Any
    nu: Any


def block_length(axis: int, block: int) -> int:
    """The largest divisor of an axis that is at most `block`."""
    return next(size for size in range(min(axis, block), 0, -1) if axis % size == 0)


def noise(shape: tuple[int, ...], salt: jax.Array) -> jax.Array:
    """u32[shape], equidistributed, a function of place and salt: an avalanche hash of the flat index."""
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in range(len(shape) - 1, -1, -1):
        index = index + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    x = index ^ (salt.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)


def _scaled(x: jax.Array, blocks: int) -> tuple[jax.Array, jax.Array]:
    """x over its block's largest magnitude, and those magnitudes f32[..., blocks]."""
    parts = x.reshape(*x.shape[:-1], blocks, -1)
    scale = jnp.max(jnp.abs(parts), axis=-1)
    return (parts / jnp.where(scale > 0, scale, 1.0)[..., None]).reshape(x.shape), scale


def _unscaled(y: jax.Array, scale: jax.Array) -> jax.Array:
    return (y.reshape(*scale.shape, -1) * scale[..., None]).reshape(y.shape)


def _quadratic(codes: jax.Array) -> jax.Array:
    c = codes.astype(jnp.float32) / 127.0
    return c * jnp.abs(c)


def _logarithmic(codes: jax.Array) -> jax.Array:
    c = codes.astype(jnp.float32)
    return jnp.where(c > 0, jnp.exp((c - 255.0) * (DECADES * math.log(10) / 254.0)), 0.0)


def _between(y: jax.Array, low: jax.Array, below: jax.Array, above: jax.Array, uniform: jax.Array) -> jax.Array:
    """low or low + 1, so that the expected value is y."""
    share = (y - below) / jnp.maximum(above - below, 1e-30)
    return low + (uniform < share)


def quantise_mu(x: jax.Array, blocks: int, uniform: jax.Array) -> Quantised:
    """First moment → i8 on the grid ±(c/127)²; uniform in [0, 1) decides between neighbours."""
    y, scale = _scaled(x, blocks)
    low = jnp.clip(jnp.floor(jnp.sign(y) * jnp.sqrt(jnp.abs(y)) * 127.0), -127, 126)
    codes = _between(y, low, _quadratic(low), _quadratic(low + 1), uniform)
    return Quantised(codes.astype(jnp.int8), scale)


def quantise_nu(x: jax.Array, blocks: int, uniform: jax.Array) -> Quantised:
    """Second moment → u8: 0 for 0, else 10^(7·(c-255)/254) for c in [1, 255]; smaller values become the smallest."""
    y, scale = _scaled(x, blocks)
    place = 255.0 + jnp.log(jnp.maximum(y, 1e-30)) * (254.0 / (DECADES * math.log(10)))
    low = jnp.clip(jnp.floor(place), 1, 254)
    codes = _between(y, low, _logarithmic(low), _logarithmic(low + 1), uniform)
    return Quantised(jnp.where(x > 0, codes, 0).astype(jnp.uint8), scale)


def dequantise_mu(q: Quantised) -> jax.Array:
    """f32 first moment."""
    return _unscaled(_quadratic(q.codes), q.scale)


def dequantise_nu(q: Quantised) -> jax.Array:
    """f32 second moment."""
    return _unscaled(_logarithmic(q.codes), q.scale)


def is_quantised(path: Any, x: jax.Array, min_size: int) -> bool:
    """Whether the leaf's moments are kept in eight bits."""
    name = str(getattr(path[-1], "key", path[-1]))
    return x.ndim >= 2 and x.size >= min_size and name not in FULL_PRECISION and not name.endswith(("norm", "bias"))


def scale_by_adam_8bit(
    b1: float = 0.9, b2: float = 0.99, eps: float = 1e-8, *, block: int = 256, min_size: int = 4096
) -> optax.GradientTransformation:
    """Adam's direction m̂/(√v̂+ε) from eight-bit moments.

    block: longest block along a leaf's last axis. min_size: leaves with fewer elements stay in float32.
    """

    def init(params: Any) -> Adam8bitState:
        def zeros(dtype: Any) -> Any:
            def one(path: Any, x: jax.Array) -> Any:
                if not is_quantised(path, x, min_size):
                    return jnp.zeros_like(x, jnp.float32)
                return Quantised(
                    jnp.zeros_like(x, dtype), _zero_scale(x, x.shape[-1] // block_length(x.shape[-1], block))
                )

            return jax.tree_util.tree_map_with_path(one, params)

        return Adam8bitState(jnp.zeros((), jnp.int32), zeros(jnp.int8), zeros(jnp.uint8))

    def update(grads: Any, state: Adam8bitState, params: Any = None) -> tuple[Any, Adam8bitState]:
        count = state.steps + 1
        treedef: Any = jax.tree.structure(grads)
        mus, nus = treedef.flatten_up_to(state.mu), treedef.flatten_up_to(state.nu)
        results = []
        for number, (g, mu, nu) in enumerate(zip(jax.tree.leaves(grads), mus, nus, strict=True)):
            g32 = g.astype(jnp.float32)
            small = not isinstance(mu, Quantised)
            m = b1 * (mu if small else dequantise_mu(mu)) + (1 - b1) * g32
            v = b2 * (nu if small else dequantise_nu(nu)) + (1 - b2) * g32 * g32
            step = (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + eps)
            if not small:
                bits = noise(g.shape, count * 4096 + number)
                halves = (bits & 0xFFFF, bits >> 16)
                low, high = (half.astype(jnp.float32) / 65536.0 for half in halves)
                blocks = mu.scale.shape[-1]
                m, v = quantise_mu(m, blocks, low), quantise_nu(v, blocks, high)
            results.append((step.astype(g.dtype), m, v))
        steps, m_leaves, v_leaves = zip(*results, strict=True)
        return treedef.unflatten(steps), Adam8bitState(count, treedef.unflatten(m_leaves), treedef.unflatten(v_leaves))

    return optax.GradientTransformation(init, update)


def _zero_scale(x: jax.Array, blocks: int) -> jax.Array:
    """f32[..., blocks] of zeros, split over the mesh as `x` is where the blocks go up in it."""
    scale = jnp.zeros((*x.shape[:-1], blocks), jnp.float32)
    if not has_mesh():
        return scale
    sharding: Any = jax.typeof(x).sharding
    spec: tuple[Any, ...] = (*sharding.spec, *(None,) * (x.ndim - len(sharding.spec)))
    outer, last = spec[:-1], spec[-1]
    names: tuple[str, ...] = (last,) if isinstance(last, str) else (last or ())
    parts = math.prod(sharding.mesh.shape[name] for name in names)
    split: jax.Array = jax.sharding.reshard(scale, PartitionSpec(*outer, last if blocks % parts == 0 else None))
    return split
