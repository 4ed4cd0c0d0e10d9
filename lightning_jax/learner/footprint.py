"""Bytes per device of one optimiser step, read from the compiled programs; no array is ever made.

Everything is lowered from abstract values in their shardings, so the mesh may be one of fake devices and the model one
that no machine here could hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lightning_jax.batch import MicroBatch, empty_micro_batch
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.objective import Setting, extra_arrays
from lightning_jax.learner.optimizer import OptimizerConfig, optimizer
from lightning_jax.learner.state import abstract_params, model_of
from lightning_jax.learner.step import make_programs
from lightning_jax.learner.trainable import split
from lightning_jax.model.config import ModelConfig, Precision
from lightning_jax.model.sharding import DEFAULT_RULES, ShardingRules, named

GIB = 2**30
CHUNKS = (512, 256, 128)  # loss entries of a row whose logits exist at a time, beside all of them (0)
_LOGITS_COPIES = (
    8  # float32 arrays the size of a chunk's logits that exist at once, generously: themselves, gradients, ...
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a micro-batch."""

    rows: int  # B, over the whole mesh
    tokens: int  # T
    entries: int  # N of a row
    logp_chunk: int  # 0: all entries at once
    remat: str


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes per device."""

    candidate: Candidate
    state: int  # parameters, optimiser state, reference policy
    gradients: int
    temporary: int  # of the larger of the two programs, the batch included
    # an optimiser step writes beside the parameters that an engine may be serving; with several steps an update, those
    # that it began with stay till its end
    new_params: int

    @property
    def peak(self) -> int:
        """The larger of gradient accumulation and optimiser step."""
        return self.state + self.gradients + self.temporary + self.new_params


def candidates(tokens: int, entries: int, unit: int, *, offload: bool = False) -> Iterator[Candidate]:
    """In order of preference: recompute least, then the largest micro-batch, then the largest chunk. unit: least B.

    offload: whether the backend can move what a block keeps to the host. XLA's CPU compiler takes the request and
    leaves it where it is, so there it has nothing to offer beyond "dots".
    """
    chunks = [0, *(chunk for chunk in CHUNKS if chunk < entries)]
    for remat in ("none", "dots", "offload", "full") if offload else ("none", "dots", "full"):
        for count in (4, 2, 1):
            for chunk in chunks:
                yield Candidate(count * unit, tokens, entries, chunk, remat)


def may_save(candidate: Candidate, vocab_size: int, mesh: Mesh) -> int:
    """Bytes per device that smaller chunks could save at most: where a candidate is too large by more, none will do."""
    rows = candidate.rows // (mesh.shape["data"] * mesh.shape["fsdp"])
    logits: int = rows * (candidate.logp_chunk or candidate.entries) * vocab_size // mesh.shape["tensor"]
    return _LOGITS_COPIES * 4 * logits


def footprint(
    model: ModelConfig,
    algo: AlgoConfig,
    optimizer_config: OptimizerConfig,
    precision: Precision,
    mesh: Mesh,
    candidate: Candidate,
    rules: ShardingRules = DEFAULT_RULES,
) -> Footprint:
    """Compile the gradient and the optimiser step of one candidate and read what they need."""
    algo = replace(algo, logp_chunk=candidate.logp_chunk, remat=candidate.remat)
    tx = optimizer(optimizer_config)
    programs = make_programs(Setting(model, algo, precision, rules), tx, offload=optimizer_config.offload)
    with jax.set_mesh(mesh):
        params = jax.tree.map(
            lambda info: _abstract(info.shape, precision.param, named(mesh, rules, info.axes)),
            abstract_params(model, algo),
        )
        trained, held = split(params, algo)
        whole = NamedSharding(mesh, PartitionSpec())
        opt_state = _initialised(tx, trained)
        grads = jax.tree.map(lambda x: _abstract(x.shape, "float32", x.sharding), trained)
        scalars = {name: _abstract((), "float32", whole) for name in ("policy_scale", "kl_coef")}
        batch = _batch(candidate, algo, NamedSharding(mesh, rules.spec(("batch", None))))
        accumulate = programs.policy.lower(trained, held, grads, batch, scalars).compile().memory_analysis()
        step = (
            programs.apply.lower(trained, opt_state, _abstract((), "int32", whole), grads).compile().memory_analysis()
        )
    reference = _bytes(model_of(params)) if algo.reference and algo.lora is None else 0
    resident = 0 if optimizer_config.offload else _bytes(opt_state)
    return Footprint(
        candidate,
        state=_bytes(params) + resident + reference,
        gradients=_bytes(grads),
        temporary=max(_extra(accumulate) + _bytes(batch), _extra(step) - _bytes(trained)),
        new_params=_bytes(trained) * (1 if algo.on_policy else 2),
    )


def _extra(analysis: Any) -> int:
    """What a program needs beyond its arguments."""
    return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes)


def _initialised(tx: Any, trained: Any) -> Any:
    init = jax.jit(tx.init)
    shapes, shardings = jax.eval_shape(tx.init, trained), init.lower(trained).compile().output_shardings
    return jax.tree.map(lambda x, s: _abstract(x.shape, x.dtype, s), shapes, shardings)


def _batch(candidate: Candidate, algo: AlgoConfig, rows: NamedSharding) -> dict[str, Any]:
    micro: MicroBatch = empty_micro_batch(1, candidate.tokens, candidate.entries)
    arrays = {name: getattr(micro, name) for name in micro.__dataclass_fields__}
    arrays |= dict.fromkeys(extra_arrays(algo), micro.entry_weight)
    return {name: _abstract((candidate.rows, *x.shape[1:]), x.dtype, rows) for name, x in arrays.items()}


def _abstract(shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)


def _bytes(tree: Any) -> int:
    """Bytes on one device."""
    total = 0
    for x in jax.tree.leaves(tree):
        total += int(np.prod(x.sharding.shard_shape(x.shape), dtype=np.int64)) * x.dtype.itemsize
    return total
