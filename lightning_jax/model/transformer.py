"""One decoder for Llama, SmolLM2, Qwen2.5, Qwen3 and Mistral.

`parameters(config)` is the abstract tree (shape, logical axes, initialiser); init, loading, sharding, checkpoints and
memory planning are each a map over it. `Decoder` is its Flax NNX form. Past the border only plain dicts move: leaves
of `params["layers"]` are stacked over L, weights lie [out, in] as in HF files (XLA's CPU matmuls want it so).

Shapes: B rows, T tokens, S keys; D, F, V, K, G, h as in `ModelConfig`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from lightning_jax.model.attention import ATTENTIONS
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.sharding import DEFAULT_RULES, ShardingRules, gathered, has_mesh, named, out_spec

Params = dict[str, Any]  # nested dict of arrays
PROJECTIONS = {
    "q": ("kgh", "d"), "k": ("kh", "d"), "v": ("kh", "d"), "o": ("d", "kgh"),
    "gate": ("f", "d"), "up": ("f", "d"), "down": ("d", "f"),
}  # fmt: skip
"""A block's matrices: letters of their outputs and of their inputs, in the order of their axes."""
REMAT_POLICIES: dict[str, Any] = {
    "none": None,  # keep all intermediate results
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # keep projections, recompute attention and norms
    "full": jax.checkpoint_policies.nothing_saveable,  # keep only each block's input
    "offload": jax.checkpoint_policies.offload_dot_with_no_batch_dims(
        "device", "pinned_host"
    ),  # projections, on the host
}
"""What the backward pass keeps of a block, by name."""
Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(q [B,T,K,G,h], k [B,T,K,h], v [B,T,K,h]) → [B,T,K,G,h]; what keys are seen, and any cache, is its business."""


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One leaf before it is an array."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # logical axes, see ShardingRules
    stddev: float | None  # None: ones (norm scales); 0: zeros (biases)


def parameters(config: ModelConfig) -> dict[str, Any]:
    """The abstract tree: nested dict of ParameterInfo, same structure as the params."""
    c, layers = config, config.num_layers
    # variance 1/fan-in keeps activations at scale 1 whatever the width; what adds to the residual stream is scaled down
    std, depth = c.embed_dim**-0.5, (2 * config.num_layers) ** -0.5
    qkv_axes = ("layers", "heads", None, "embed")
    layer: dict[str, ParameterInfo] = {
        "attn_norm": ParameterInfo((layers, c.embed_dim), ("layers", None), None),
        "q": ParameterInfo(
            (layers, c.num_kv_heads, c.num_groups, c.head_dim, c.embed_dim),
            ("layers", "heads", None, None, "embed"),
            std,
        ),
        "k": ParameterInfo((layers, c.num_kv_heads, c.head_dim, c.embed_dim), qkv_axes, std),
        "v": ParameterInfo((layers, c.num_kv_heads, c.head_dim, c.embed_dim), qkv_axes, std),
        "o": ParameterInfo(
            (layers, c.embed_dim, c.num_kv_heads, c.num_groups, c.head_dim),
            ("layers", "embed", "heads", None, None),
            depth * (c.num_heads * c.head_dim) ** -0.5,
        ),
        "mlp_norm": ParameterInfo((layers, c.embed_dim), ("layers", None), None),
        "gate": ParameterInfo((layers, c.mlp_dim, c.embed_dim), ("layers", "mlp", "embed"), std),
        "up": ParameterInfo((layers, c.mlp_dim, c.embed_dim), ("layers", "mlp", "embed"), std),
        "down": ParameterInfo((layers, c.embed_dim, c.mlp_dim), ("layers", "embed", "mlp"), depth * c.mlp_dim**-0.5),
    }
    if c.qkv_bias:
        layer["q_bias"] = ParameterInfo(
            (layers, c.num_kv_heads, c.num_groups, c.head_dim), ("layers", "heads", None, None), 0.0
        )
        for name in ("k_bias", "v_bias"):
            layer[name] = ParameterInfo((layers, c.num_kv_heads, c.head_dim), ("layers", "heads", None), 0.0)
    if c.qk_norm:
        for name in ("q_norm", "k_norm"):
            layer[name] = ParameterInfo((layers, c.head_dim), ("layers", None), None)
    tree: dict[str, Any] = {
        "embed": ParameterInfo((c.vocab_size, c.embed_dim), ("vocab", "embed"), std),
        "layers": layer,
        "final_norm": ParameterInfo((c.embed_dim,), (None,), None),
    }
    if not c.tie_embeddings:
        tree["head"] = ParameterInfo((c.vocab_size, c.embed_dim), ("vocab", "embed"), std)
    return tree


def init_params(
    config: ModelConfig,
    key: jax.Array,
    *,
    dtype: str = "float32",
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
) -> Params:
    """Random parameters, the same on every mesh; each leaf is created in its sharding when one is given."""
    infos, treedef = jax.tree.flatten(parameters(config))

    def create() -> list[jax.Array]:
        leaves = []
        for number, info in enumerate(infos):
            if info.stddev is None:
                leaves.append(jnp.ones(info.shape, dtype))
            else:
                noise = jax.random.normal(jax.random.fold_in(key, number), info.shape)
                leaves.append((noise * info.stddev).astype(dtype))
        return leaves

    shardings = None if mesh is None else [named(mesh, rules, info.axes) for info in infos]
    params: Params = jax.tree.unflatten(treedef, jax.jit(create, out_shardings=shardings)())
    return params


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis, in float32, returned in x's dtype."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (normed * scale.astype(jnp.float32)).astype(x.dtype)


def rope_angles(config: ModelConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos, sin f32[..., h/2] of integer positions[...], with Llama 3's scaling where configured."""
    half = config.head_dim // 2
    frequency = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if (s := config.rope_scaling) is not None:
        wavelength = 2 * math.pi / frequency
        ramp = (s.original_max_position / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
        ramp = jnp.clip(ramp, 0.0, 1.0)
        frequency = (1 - ramp) * frequency / s.factor + ramp * frequency
    angles = positions[..., None].astype(jnp.float32) * frequency
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embedding, half-split form. x [B,T,...heads,h]; cos, sin [B,T,h/2]."""
    shape = cos.shape[:2] + (1,) * (x.ndim - 3) + cos.shape[-1:]
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def block(
    layer: Params,
    x: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    attend: Attend,
    config: ModelConfig,
    rules: ShardingRules = DEFAULT_RULES,
    lora_scale: float = 1.0,
) -> jax.Array:
    """One transformer block. layer: leaves without their L axis; x [B,T,D] → [B,T,D], computed in x's dtype.

    layer["lora"], where there is one, holds adapters (see `lora.py`), whose products count lora_scale times.
    """
    c, dtype = config, x.dtype
    adapters = layer.get("lora", {})

    def project(name: str, y: jax.Array, *axes: str | None) -> jax.Array:
        """y [N,inputs] → [N,outputs]; axes: of the weight, as it is multiplied."""
        outputs, inputs = PROJECTIONS[name]
        cut = len(outputs)
        layout = out_spec(rules, "batch", *axes[:cut])
        weight = gathered(layer[name].astype(dtype), rules, *axes)
        result = jnp.einsum(f"n{inputs},{outputs}{inputs}->n{outputs}", y, weight, out_sharding=layout)
        if name in adapters:
            down = gathered(adapters[name]["a"].astype(dtype), rules, None, *axes[cut:])
            up = gathered(adapters[name]["b"].astype(dtype) * lora_scale, rules, *axes[:cut], None)
            low = jnp.einsum(f"n{inputs},r{inputs}->nr", y, down, out_sharding=out_spec(rules, "batch", None))
            result = result + jnp.einsum(f"nr,{outputs}r->n{outputs}", low, up, out_sharding=layout)
        return result

    rows, length, width = x.shape
    flat = (rows * length, width)
    # Projections work on [B·T, D]: XLA's CPU products over two batch axes are slower.
    hidden = rms_norm(x, layer["attn_norm"], c.norm_eps).reshape(flat)
    q = project("q", hidden, "heads", None, None, None)
    k, v = project("k", hidden, "heads", None, None), project("v", hidden, "heads", None, None)
    if c.qkv_bias:
        q, k, v = (
            q + layer["q_bias"].astype(dtype),
            k + layer["k_bias"].astype(dtype),
            v + layer["v_bias"].astype(dtype),
        )

    def unflatten(y: jax.Array, *axes: str | None) -> jax.Array:
        """[B·T,...] → [B,T,...]; the layout is named, because with B = 1 it could not be told."""
        shape = (rows, length, *y.shape[1:])
        return jax.lax.reshape(y, shape, out_sharding=out_spec(rules, "batch", None, *axes))

    q = unflatten(q, "heads", None, None)
    k, v = unflatten(k, "heads", None), unflatten(v, "heads", None)
    if c.qk_norm:
        q, k = rms_norm(q, layer["q_norm"], c.norm_eps), rms_norm(k, layer["k_norm"], c.norm_eps)
    attended = attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
    attended = attended.reshape(rows * length, *attended.shape[2:])
    x = x + unflatten(project("o", attended, None, "heads", None, None), None)

    hidden = rms_norm(x, layer["mlp_norm"], c.norm_eps).reshape(flat)
    gate, up = project("gate", hidden, "mlp", None), project("up", hidden, "mlp", None)
    return x + unflatten(project("down", jax.nn.silu(gate) * up, None, "mlp"), None)


def embed(params: Params, tokens: jax.Array, dtype: str, rules: ShardingRules = DEFAULT_RULES) -> jax.Array:
    """Token embeddings. tokens i32[B,T] → [B,T,D].

    On a mesh every device looks all tokens up in its slice of D, and the slices are exchanged for rows: the whole table
    would be the largest array of a step.
    """
    table = params["embed"]
    if not has_mesh():
        looked_up: jax.Array = table.at[tokens].get().astype(dtype)
        return looked_up
    split = rules.spec(("embed",))[0]
    used = {split} if isinstance(split, str) else set(split or ())
    batch = rules.batch if isinstance(rules.batch, tuple) else (rules.batch,)
    rows = tuple(axis for axis in batch if axis is not None and axis not in used) or None
    slices = jax.sharding.reshard(table, PartitionSpec(None, split))
    everyone = jax.sharding.reshard(tokens, PartitionSpec(rows, None))
    found = slices.at[everyone].get(out_sharding=PartitionSpec(rows, None, split)).astype(dtype)
    exchanged: jax.Array = jax.sharding.reshard(found, rules.spec(("batch", None, None)))
    return exchanged


def forward(
    params: Params,
    config: ModelConfig,
    tokens: jax.Array,
    positions: jax.Array,
    mask: jax.Array,
    *,
    compute_dtype: str = "float32",
    remat: str = "none",
    attention: str = "blocks",
    lora_scale: float = 1.0,
    rules: ShardingRules = DEFAULT_RULES,
) -> jax.Array:
    """Final hidden states, normed: what the head multiplies. Never materialises logits.

    tokens i32[B,T]; positions i32[B,T]; mask bool[B,T,T] (query, key), within the lower triangle. Returns [B,T,D] in
    compute_dtype. remat: a name of REMAT_POLICIES; attention: one of ATTENTIONS; lora_scale: weight of the adapters in
    params["lora"].
    Sliding windows count positions, so that branches of a trie see the window of their own sequence.
    """
    cos, sin = rope_angles(config, positions)
    if config.sliding_window is not None:
        mask = mask & (positions[:, :, None] - positions[:, None, :] < config.sliding_window)

    def layer_step(x: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return ATTENTIONS[attention](q, k, v, mask)

        return block(layer, x, cos, sin, attend, config, rules, lora_scale), None

    step = layer_step if remat == "none" else jax.checkpoint(layer_step, policy=REMAT_POLICIES[remat])
    layers = {**params["layers"], "lora": params["lora"]} if "lora" in params else params["layers"]
    x, _ = jax.lax.scan(step, embed(params, tokens, compute_dtype, rules), layers)
    return rms_norm(x, params["final_norm"], config.norm_eps)


def head(params: Params) -> jax.Array:
    """The unembedding [V,D]: tied or its own."""
    weight: jax.Array = params["head"] if "head" in params else params["embed"]
    return weight


class Decoder(nnx.Module):
    """The decoder as a Flax NNX module: stacked leaves, for users who compose it with other NNX code."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = nnx.static(config)
        self.params = nnx.data(jax.tree.map(nnx.Param, init_params(config, rngs.params())))

    def __call__(self, tokens: jax.Array, positions: jax.Array, mask: jax.Array) -> jax.Array:
        """Logits f32[B,T,V]."""
        params = self.pure()
        hidden = forward(params, self.config, tokens, positions, mask)
        return jnp.einsum("btd,vd->btv", hidden.astype(jnp.float32), head(params).astype(jnp.float32))

    def pure(self) -> Params:
        """The parameters as the plain dict that jitted functions take."""
        params: Params = nnx.to_pure_dict(nnx.state(self, nnx.Param))["params"]
        return params
