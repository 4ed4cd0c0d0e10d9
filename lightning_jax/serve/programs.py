"""The three device programs of the engine, in one place: prefill, load, decode.

Each is compiled ahead of time for the only shapes it will ever see; a call with other shapes is an error that names
them. Unused rows are aimed past the last slot and dropped: fixed shapes are what makes a row's bits independent of its
neighbours. The state is donated: every program returns the next state and the last one must not be used again.

S slots, N decode steps, R prefill rows, C chunk, E rows of a load.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.transformer import Params, block, embed, head, rms_norm, rope_angles
from lightning_jax.serve import cache
from lightning_jax.serve.config import CONTROL_COLUMNS, EngineConfig
from lightning_jax.serve.placement import Placement
from lightning_jax.serve.sampler import likeliest, sample

State = dict[str, Any]  # keys, values: [layer][block]; slots: arrays of S; pool_keys, pool_values: [layer] of chunks
ROW_COLUMNS = ("slot", "start", "pool_index")
OUT_COLUMNS = ("token", "logp", "kept_mass")
logger = logging.getLogger(__name__)


def new_state(config: ModelConfig, engine: EngineConfig, pool_size: int, dtype: str) -> State:
    """An empty cache, idle slots and an empty pool of `pool_size` chunks."""
    keys, values = cache.empty_blocks(config, engine.slots, engine.max_length, engine.block_size(), dtype)
    k, h, chunk = config.num_kv_heads, config.head_dim, engine.prefill_chunk
    return {
        "keys": keys,
        "values": values,
        "slots": {
            "token": jnp.zeros(engine.slots, jnp.int32),
            "position": jnp.zeros(engine.slots, jnp.int32),
            "seed": jnp.zeros(engine.slots, jnp.uint32),
            "temperature": jnp.ones(engine.slots, jnp.float32),
            "top_p": jnp.ones(engine.slots, jnp.float32),
            "end": jnp.zeros(engine.slots, jnp.int32),
            "active": jnp.zeros(engine.slots, bool),
            "top": jnp.zeros(engine.slots, bool),
        },
        "pool_keys": [jnp.zeros((pool_size, k, h, chunk), dtype) for _ in range(config.num_layers)],
        "pool_values": [jnp.zeros((pool_size, k, chunk, h), dtype) for _ in range(config.num_layers)],
    }


def mask_words(vocab_size: int) -> int:
    """W: 32-bit words of a mask over the vocabulary."""
    return -(-vocab_size // 32)


def shared_params(params: Params, dtype: str) -> Params:
    """The trained arrays themselves, layers stacked: no copy where dtypes agree, so they must stay valid."""
    served: Params = jax.tree.map(lambda x: x if x.dtype == dtype else x.astype(dtype), params)
    return served


@partial(jax.jit, static_argnames="dtype")
def copied_params(params: Params, dtype: str) -> Params:
    """Stacked training parameters → a list of layers in the compute dtype, as copies: the caller may donate his."""

    def copied(x: jax.Array) -> jax.Array:
        return jnp.array(x.astype(dtype), copy=True)

    out: Params = {name: copied(leaf) for name, leaf in params.items() if name != "layers"}
    return {**out, "layers": jax.tree.map(copied, layers_of(params))}


def layers_of(params: Params) -> list[Params]:
    """The layers one by one, of stacked parameters or of those that `copied_params` made."""
    layers: list[Params] | Params = params["layers"]
    if isinstance(layers, list):
        return layers
    return [{name: leaf[i] for name, leaf in layers.items()} for i in range(len(layers["q"]))]


def apply_control(slots: dict[str, jax.Array], control: jax.Array) -> dict[str, jax.Array]:
    """Overwrite the slots whose `write` column is set. control i32[S,9]: CONTROL_COLUMNS, floats as their bits."""
    column = {name: control[:, i] for i, name in enumerate(CONTROL_COLUMNS)}
    write = column["write"] != 0
    new = {
        "token": column["token"],
        "position": column["position"],
        "seed": jax.lax.bitcast_convert_type(column["seed"], jnp.uint32),
        "temperature": jax.lax.bitcast_convert_type(column["temperature"], jnp.float32),
        "top_p": jax.lax.bitcast_convert_type(column["top_p"], jnp.float32),
        "end": column["end"],
        "active": column["active"] != 0,
        "top": column["top"] != 0,
    }
    return {name: jnp.where(write, new[name], old) for name, old in slots.items()}


def decode(
    params: Params,
    state: State,
    control: jax.Array,
    bits: jax.Array,
    masked: jax.Array,
    steps: jax.Array,
    *,
    config: ModelConfig,
    engine: EngineConfig,
    eos_ids: tuple[int, ...],
) -> tuple[State, jax.Array, jax.Array]:
    """Up to `steps` ≤ N tokens for every active slot; stops early when none is active.

    bits i32[S,W]: what slots in masked bool[S] may draw next; after their first token only the host knows what follows,
    so such a dispatch has steps=1. Returns the state, i32[N,S,3]: the token (-1 where the slot was idle), the bits of
    its float32 log-prob and those of the mass kept; and i32[N,S,2K], written while a slot wants it: the K likeliest
    tokens and the bits of their log-probs.
    """
    eos = jnp.asarray(eos_ids or (-1,), jnp.int32)
    dtype = params["embed"].dtype
    count = min(engine.top_logprobs, config.vocab_size)

    def likeliest_of(logits: jax.Array, slots: dict[str, jax.Array]) -> jax.Array:
        ids, logps = likeliest(logits, slots["temperature"], slots["top_p"], bits, masked & slots["active"], count)
        return jnp.concatenate([ids, jax.lax.bitcast_convert_type(logps, jnp.int32)], axis=-1)

    def forward_token(keys: Any, values: Any, slots: dict[str, jax.Array]) -> tuple[Any, Any, jax.Array]:
        # Idle slots write to the last position, which no live sequence ever needs: its token is never fed back.
        at = jnp.where(slots["active"], slots["position"], engine.max_length - 1)
        last = jnp.max(jnp.where(slots["active"], slots["position"], 0))
        cos, sin = rope_angles(config, at[:, None])
        x = embed(params, slots["token"][:, None], dtype)
        keys, values = list(keys), list(values)
        for number, layer in enumerate(layers_of(params)):

            def attend(q: jax.Array, k: jax.Array, v: jax.Array, number: int = number) -> jax.Array:
                keys[number], values[number] = cache.write_tokens(keys[number], values[number], k[:, 0], v[:, 0], at)
                return cache.attend(q, keys[number], values[number], at[:, None], last, config.sliding_window)

            x = block(layer, x, cos, sin, attend, config)
        x = rms_norm(x, params["final_norm"], config.norm_eps)[:, 0]
        return keys, values, jnp.einsum("sd,vd->sv", x, head(params), preferred_element_type=jnp.float32)

    def step(carry: Any) -> Any:
        n, keys, values, slots, out, tops = carry
        keys, values, logits = forward_token(keys, values, slots)
        after = slots["position"] + 1
        tokens, logps, kept = sample(
            logits, slots["temperature"], slots["top_p"], slots["seed"], after, bits, masked & slots["active"]
        )
        active = slots["active"]
        floats = (jax.lax.bitcast_convert_type(x, jnp.int32) for x in (logps, kept))
        packed = jnp.stack([jnp.where(active, tokens, -1), *floats], axis=-1)
        out = jax.lax.dynamic_update_index_in_dim(out, packed, n, 0)
        if count:  # an in-place branch: nobody who asks for nothing pays
            tops = jax.lax.cond(
                jnp.any(slots["top"] & active),
                lambda: jax.lax.dynamic_update_index_in_dim(tops, likeliest_of(logits, slots), n, 0),
                lambda: tops,
            )
        ended = jnp.any(tokens[:, None] == eos, axis=1) | (after + 1 >= slots["end"])
        slots = {
            **slots,
            "token": jnp.where(active, tokens, slots["token"]),
            "position": jnp.where(active, after, slots["position"]),
            "active": active & ~ended,
        }
        return n + 1, keys, values, slots, out, tops

    out = jnp.full((engine.decode_steps, engine.slots, len(OUT_COLUMNS)), -1, jnp.int32)
    tops = jnp.zeros((engine.decode_steps, engine.slots, 2 * count), jnp.int32)
    start = (jnp.int32(0), state["keys"], state["values"], apply_control(state["slots"], control), out, tops)
    _, keys, values, slots, out, tops = jax.lax.while_loop(
        lambda c: (c[0] < steps) & jnp.any(c[3]["active"]), step, start
    )
    return {**state, "keys": keys, "values": values, "slots": slots}, out, tops


def prefill(
    params: Params, state: State, tokens: jax.Array, rows: jax.Array, *, config: ModelConfig, engine: EngineConfig
) -> State:
    """Compute one chunk of keys and values for up to R slots, and keep copies in the pool.

    tokens i32[R,C]; rows i32[R,3]: slot (≥ S: unused), start (a multiple of C), index in the pool (≥ its size: not
    kept).
    """
    slots, starts, pool_index = rows[:, 0], rows[:, 1], rows[:, 2]
    positions = starts[:, None] + jnp.arange(engine.prefill_chunk)
    last = jnp.max(jnp.where(slots < engine.slots, positions[:, -1], 0))
    cos, sin = rope_angles(config, positions)
    x = embed(params, tokens, params["embed"].dtype)
    keys, values = list(state["keys"]), list(state["values"])
    pool_keys, pool_values = list(state["pool_keys"]), list(state["pool_values"])
    for number, layer in enumerate(layers_of(params)):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, number: int = number) -> jax.Array:
            k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
            keys[number], values[number] = cache.write_chunks(keys[number], values[number], k, v, slots, starts)
            pool_keys[number] = pool_keys[number].at[pool_index].set(k, mode="drop")
            pool_values[number] = pool_values[number].at[pool_index].set(v, mode="drop")
            return cache.attend(q, keys[number], values[number], positions, last, config.sliding_window, slots)

        x = block(layer, x, cos, sin, attend, config)
    return {**state, "keys": keys, "values": values, "pool_keys": pool_keys, "pool_values": pool_values}


def load(state: State, rows: jax.Array) -> State:
    """Copy chunks of the pool into slots. rows i32[E,3]: slot (≥ S: unused), start, index in the pool."""
    slots, starts, pool_index = rows[:, 0], rows[:, 1], rows[:, 2]
    keys, values = [], []
    for layer_k, layer_v, pool_k, pool_v in zip(
        state["keys"], state["values"], state["pool_keys"], state["pool_values"], strict=True
    ):
        k, v = pool_k.at[pool_index].get(mode="clip"), pool_v.at[pool_index].get(mode="clip")
        new_k, new_v = cache.write_chunks(layer_k, layer_v, k, v, slots, starts)
        keys.append(new_k)
        values.append(new_v)
    return {**state, "keys": keys, "values": values}


@dataclass(frozen=True, slots=True)
class Programs:
    """The compiled programs; each takes and returns exactly the shapes it was compiled for."""

    decode: Callable[..., tuple[State, jax.Array, jax.Array]]
    prefill: Callable[..., State]
    load: Callable[..., State]


def _guarded(name: str, compiled: Any) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return compiled(*args)
        except TypeError as error:
            raise ValueError(
                f"the engine's {name} program was called with shapes or dtypes it was not compiled for; published "
                f"weights must keep the shapes of those the engine was started with: {error}"
            ) from error

    return call


def compile_programs(
    config: ModelConfig,
    engine: EngineConfig,
    eos_ids: tuple[int, ...],
    params: Params,
    state: State,
    placement: Placement,
    progress: Callable[[str], None] | None = None,
) -> Programs:
    """Compile everything for these params and this state, as they lie; `progress(line)` after each program."""
    i32 = partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    jobs: dict[str, tuple[Any, tuple[Any, ...], int]] = {
        "decode": (
            partial(decode, config=config, engine=engine, eos_ids=eos_ids),
            (
                params,
                state,
                i32((engine.slots, len(CONTROL_COLUMNS))),
                i32((engine.slots, mask_words(config.vocab_size))),
                jax.ShapeDtypeStruct((engine.slots,), bool),
                i32(()),
            ),
            1,
        ),
        "prefill": (
            partial(prefill, config=config, engine=engine),
            (
                params,
                state,
                i32((engine.prefill_rows, engine.prefill_chunk)),
                i32((engine.prefill_rows, len(ROW_COLUMNS))),
            ),
            1,
        ),
        "load": (load, (state, i32((engine.load_rows, len(ROW_COLUMNS)))), 0),
    }
    compiled: dict[str, Any] = {}
    returned, whole = placement.returned(state), placement.everywhere
    for name, (function, args, donated) in jobs.items():
        layout = (returned, whole, whole) if name == "decode" else returned
        began = time.perf_counter()
        compiled[name] = _guarded(
            name,
            jax.jit(function, donate_argnums=donated, out_shardings=None if returned is None else layout)
            .lower(*args)
            .compile(),
        )
        seconds = time.perf_counter() - began
        logger.info("compiled %s in %.2f s", name, seconds)
        if progress is not None:
            progress(f"compiled the engine's {name} program in {seconds:.1f} s")
    return Programs(**compiled)
