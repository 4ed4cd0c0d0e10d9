"""The device's side of the engine: weights, cache and programs behind four calls that take and return numpy.

Invariant: one thread calls; each call consumes the state and leaves the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.transformer import Params
from lightning_jax.serve.config import EngineConfig
from lightning_jax.serve.placement import Placement
from lightning_jax.serve.programs import (
    Programs,
    State,
    compile_programs,
    copied_params,
    mask_words,
    new_state,
    shared_params,
)


class Device:
    """Weights, key/value cache and compiled programs of one engine."""

    def __init__(self, model: ModelConfig, config: EngineConfig, eos_ids: tuple[int, ...]) -> None:
        if config.max_length > model.max_position:
            raise ValueError(
                f"max_length={config.max_length} of the engine exceeds max_position={model.max_position} of the model"
            )
        self._model = model
        self._config = replace(config, cache_block=config.block_size(jax.default_backend()))
        self._eos_ids = eos_ids
        self._placement = Placement(model, config)
        chunk_bytes = (2 * model.num_layers * model.num_kv_heads * model.head_dim * config.prefill_chunk) * jnp.dtype(
            config.compute_dtype
        ).itemsize
        self.pool_size = config.prefix_cache_bytes // chunk_bytes
        self.mask_words = mask_words(model.vocab_size)
        self._params: Params
        self._state: State
        self._unmasked: tuple[jax.Array, jax.Array]
        self._programs: Programs

    def start(self, params: Params, progress: Callable[[str], None] | None = None) -> None:
        """Place the weights, allocate the cache and compile everything."""
        self._params = self._served(params)
        self._state = self._placement.state(
            new_state(self._model, self._config, max(1, self.pool_size), self._config.compute_dtype)
        )
        self._programs = compile_programs(
            self._model, self._config, self._eos_ids, self._params, self._state, self._placement, progress
        )
        slots = self._config.slots
        self._unmasked = jnp.zeros((slots, self.mask_words), jnp.int32), jnp.zeros(slots, bool)

    def replace_params(self, params: Params) -> None:
        """New weights of the same shapes; ValueError names the first leaf that differs."""
        new = self._served(params)
        check_same(self._params, new)
        for leaf in jax.tree.leaves(new):
            leaf.block_until_ready()  # from here on the caller may donate its arrays, unless they are shared
        self._params = new

    def _served(self, params: Params) -> Params:
        """Weights as the programs read them."""
        make = shared_params if self._config.share_weights else copied_params
        return make(self._placement.weights(params), self._config.compute_dtype)

    def load(self, rows: NDArray[np.int32]) -> None:
        """Copy chunks of the pool into slots. rows i32[E,3]."""
        self._state = self._programs.load(self._state, rows)

    def prefill(self, tokens: NDArray[np.int32], rows: NDArray[np.int32]) -> None:
        """Compute chunks. tokens i32[R,C], rows i32[R,3]."""
        self._state = self._programs.prefill(self._params, self._state, tokens, rows)

    def decode(
        self, control: NDArray[np.int32], masks: tuple[NDArray[np.int32], NDArray[np.bool_]] | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Up to N tokens per active slot; with masks (i32[S,W], bool[S]) one.

        control i32[S,9] → handles on i32[N,S,3] and i32[N,S,2K], to be given to `read` and `read_tops`.
        """
        bits, masked = self._unmasked if masks is None else masks
        steps = np.int32(self._config.decode_steps if masks is None else 1)
        self._state, out, tops = self._programs.decode(self._params, self._state, control, bits, masked, steps)
        out.copy_to_host_async()
        return out, tops

    @staticmethod
    def read(out: jax.Array) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
        """Wait for a decode: tokens i32[S,N], -1 where idle, log-probs f32[S,N] and mass kept f32[S,N]."""
        packed = np.asarray(out)
        logps, kept = (np.ascontiguousarray(packed[..., i].T).view(np.float32) for i in (1, 2))
        return packed[..., 0].T, logps, kept

    @staticmethod
    def read_tops(tops: jax.Array) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Wait for a decode's likeliest tokens: ids i32[S,N,K] and log-probs f32[S,N,K]; nobody else's cost."""
        packed = np.asarray(tops).swapaxes(0, 1)
        count = packed.shape[-1] // 2
        return packed[..., :count], np.ascontiguousarray(packed[..., count:]).view(np.float32)


def check_same(old: Params, new: Params) -> None:
    """ValueError names the first leaf of `new` whose shape or dtype differs from that of `old`."""
    before, after = jax.tree.leaves_with_path(old), jax.tree.leaves_with_path(new)
    if [p for p, _ in before] != [p for p, _ in after]:
        raise ValueError("the published weights have other leaves than those the engine was started with")
    for (path, a), (_, b) in zip(before, after, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(
                f"published weight {jax.tree_util.keystr(path)} is {b.dtype}{list(b.shape)}, the engine was compiled "
                f"for {a.dtype}{list(a.shape)}: start a new engine for another architecture"
            )
