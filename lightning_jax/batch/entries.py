"""Between arrays at the loss entries of micro-batches and values per transition or per token. Host code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_jax.batch.batch import MicroBatch
from lightning_jax.types import FloatArray

F64 = NDArray[np.float64]


def per_transition(micro: MicroBatch, values: F64) -> FloatArray:
    """f32[B,N]: a value per transition (indexed as Plan.transitions) at each of its entries; 0 at padding."""
    padded = np.append(values, 0.0)  # entry_transition is -1 at padding
    return padded[micro.entry_transition].astype(np.float32)


def per_token(micro: MicroBatch, values: Sequence[F64]) -> FloatArray:
    """f32[B,N]: values[number][t] at entry t of that transition; 0 at padding."""
    result = np.zeros(micro.entry_transition.size, np.float32)
    for number, places in _places(micro):
        result[places] = values[number]
    return result.reshape(micro.entry_transition.shape)


def by_transition(micros: Sequence[MicroBatch], arrays: Sequence[NDArray[Any]], count: int) -> list[F64]:
    """f64[R] per transition from arrays [B,N] beside the micro-batches; empty where one of `count` isn't laid out."""
    result: list[F64] = [np.zeros(0)] * count
    for micro, array in zip(micros, arrays, strict=True):
        flat = array.reshape(-1)
        for number, places in _places(micro):
            result[number] = flat[places].astype(np.float64)
    return result


def _places(micro: MicroBatch) -> list[tuple[int, NDArray[np.intp]]]:
    """(transition, its entries' places in the flattened arrays, in order of its tokens)."""
    numbers = micro.entry_transition.reshape(-1)
    order = np.argsort(numbers, kind="stable")
    order = order[np.searchsorted(numbers[order], 0) :]  # padding sorts first
    found, starts = np.unique(numbers[order], return_index=True)
    return list(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if found.size else []
