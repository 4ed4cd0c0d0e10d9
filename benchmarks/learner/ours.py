"""This project's side, and what its time is made of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.learner.workload import Workload
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.model.config import ModelConfig, Precision
from lightning_jax.model.transformer import ParameterInfo, init_params, parameters

FOUND = {
    "loss": "learner/loss",
    "entropy": "learner/entropy_nat",
    "gap": "learner/gap_nat",
    "grad_norm": "learner/grad_norm",
}
"""What both sides must agree on at equal weights → our metric. On-policy the loss says little, the others much."""


@dataclass(frozen=True)
class Timing:
    """One update, and what it found."""

    seconds: float
    cpu: float
    found: dict[str, float]


class Ours:
    """A learner for one layout of a workload. All layouts' states are of one kind, so that one can go round them."""

    def __init__(
        self, model: ModelConfig, workload: Workload, layout: str, dtype: str, remat: str, attention: str
    ) -> None:
        # every sequence is a transition and weighs the same, as on the other side
        algo = AlgoConfig(
            tis=None, dual_clip=None, aggregation="seq-mean-token-mean", logp_chunk=256,
            remat=remat, attention=attention,
        )  # fmt: skip
        optimizer = OptimizerConfig(learning_rate=1e-6)
        self.learner = Learner(
            model, algo, workload.layouts[layout], optimizer, precision=Precision(param="float32", compute=dtype)
        )
        self.transitions = workload.transitions

    def update(self, state: Any) -> tuple[Any, Timing]:
        """One optimiser step, to the end."""
        started, busy = time.perf_counter(), time.process_time()
        state, metrics = self.learner.update(state, self.transitions)
        jax.block_until_ready(state["params"])
        seconds, cpu = time.perf_counter() - started, time.process_time() - busy
        return state, Timing(seconds, cpu, {name: metrics[key] for name, key in FOUND.items()})


class Stopwatch:
    """A jitted function that waits for its result and books the time."""

    def __init__(self, function: Any, seconds: list[float]) -> None:
        self._function, self._seconds = function, seconds

    def __call__(self, *arguments: Any) -> Any:
        """Call, wait, book."""
        started = time.perf_counter()
        result = jax.block_until_ready(self._function(*arguments))
        self._seconds.append(time.perf_counter() - started)
        return result

    def _cache_size(self) -> int:
        return int(self._function._cache_size())


def host_fraction(ours: Ours, state: Any) -> tuple[Any, float]:
    """The state after an update, and the share of its time outside the programs: layout, placement, Python."""
    seconds: list[float] = []
    programs = ours.learner._programs
    watched = replace(programs, **{f.name: Stopwatch(getattr(programs, f.name), seconds) for f in fields(programs)})
    ours.learner._programs = watched
    try:
        state, timing = ours.update(state)
    finally:
        ours.learner._programs = programs
    return state, 1.0 - sum(seconds) / timing.seconds


def matmul_flops(model: ModelConfig, rows: int, tokens: int, entries: int, passes: int, head_passes: int) -> float:
    """Of projections, attention (its causal half) and head. 3 passes are forward and both gradients, 4 recompute."""
    d, f, h = model.embed_dim, model.mlp_dim, model.head_dim
    projections = 2 * rows * tokens * d * (h * (2 * model.num_heads + 2 * model.num_kv_heads) + 3 * f)
    attention = 2 * rows * tokens * tokens * h * model.num_heads  # two products over half of the pairs
    head = 2 * rows * entries * d * model.vocab_size
    return float(model.num_layers * passes * (projections + attention) + head_passes * head)


def gemm_rate(model: ModelConfig, rows: int, tokens: int, entries: int, dtype: str) -> float:
    """FLOP/s of XLA's own products in a training step's shapes: y = x·Wᵀ and both gradients, weighted by their work."""
    shapes = [
        (rows * tokens, model.embed_dim, model.mlp_dim),
        (rows * tokens, model.mlp_dim, model.embed_dim),
        (rows * tokens, model.embed_dim, model.embed_dim),
        (rows * entries, model.embed_dim, model.vocab_size),
    ]
    counts = [2 * model.num_layers, model.num_layers, 2 * model.num_layers, 1]
    work = seconds = 0.0
    for (n, k, m), count in zip(shapes, counts, strict=True):
        x, w, g = (jnp.ones(shape, dtype) for shape in ((n, k), (m, k), (n, m)))
        products = (
            jax.jit(lambda x, w, g: jnp.einsum("nk,mk->nm", x, w)),
            jax.jit(lambda x, w, g: jnp.einsum("nm,mk->nk", g, w)),
            jax.jit(lambda x, w, g: jnp.einsum("nm,nk->mk", g, x)),
        )
        for product in products:
            jax.block_until_ready(product(x, w, g))
            started = time.perf_counter()
            for _ in range(2):
                jax.block_until_ready(product(x, w, g))
            seconds += count * (time.perf_counter() - started) / 2
            work += count * 2 * n * k * m
    return work / seconds


def weights(model: ModelConfig) -> Any:
    """Random ones; biases too, so that a side that forgets them is found out."""
    rng = np.random.default_rng(0)

    def of(info: ParameterInfo, leaf: Any) -> Any:
        return jnp.asarray(0.1 * rng.normal(size=info.shape), jnp.float32) if info.stddev == 0 else leaf

    return jax.tree.map(of, parameters(model), init_params(model, jax.random.key(0)))


def disagreement(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    """Name → relative difference (of the loss, which may be near 0: absolute) of what both sides found."""
    return {
        name: abs(ours[name] - theirs[name]) / (1.0 if name == "loss" else max(abs(theirs[name]), 1e-9))
        for name in FOUND
    }


def median(values: Sequence[float]) -> float:
    """Middle value."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
