"""The train state: a plain dict of arrays, all of it saved. No randomness: that follows from seeds and counts.

params       model's tree; beside it `lora` (adapters), `value` and `critic` (the critic's head and model)
opt_state    optax's, of the trained leaves
step         i32[], optimiser steps
updates      i32[], calls of update: seeds the mini-batches, ends the critic's warm-up
reference    frozen copy of the first model, only with a KL term and without adapters
kl           coefficient and memory of its controller (NaN: no update yet), only with a KL term
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.kl_control import WINDOW
from lightning_jax.learner.placement import put
from lightning_jax.learner.trainable import ADDED, split
from lightning_jax.learner.value import critic_parameters, value_parameters
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.lora import lora_parameters
from lightning_jax.model.sharding import ShardingRules, named
from lightning_jax.model.transformer import ParameterInfo, Params, parameters

TrainState = dict[str, Any]


def abstract_params(model: ModelConfig, algo: AlgoConfig) -> dict[str, Any]:
    """ParameterInfo of every leaf of state["params"]."""
    tree = dict(parameters(model))
    if algo.lora is not None:
        tree["lora"] = lora_parameters(model, algo.lora)
    if algo.has_critic:
        tree["value"] = value_parameters(model.embed_dim)
        if algo.critic == "separate":
            tree["critic"] = critic_parameters(tree)
    return tree


def place_params(params: Params, model: ModelConfig, algo: AlgoConfig, mesh: Mesh, rules: ShardingRules) -> Params:
    """`params`' leaves in their shardings; adapters and critic are created where they are missing.

    Leaves that lie there already are taken as they are: no program of the learner gives parameters' buffers away.

    ValueError where names or shapes are not the model's.
    """
    infos = abstract_params(model, algo)
    given = {name: leaf for name, leaf in params.items() if name in infos or name not in ADDED}
    for name in ADDED:
        if name in infos and name not in given:
            given[name] = critic_parameters(given) if name == "critic" else _created(name, infos[name], algo.seed)
    have, want = str(jax.tree.structure(given)), str(jax.tree.structure(infos))
    if have != want:
        raise ValueError(f"the parameters' tree {have} is not the one that the model config asks for: {want}")

    def place(path: Any, info: ParameterInfo, x: Any) -> jax.Array:
        if tuple(x.shape) != info.shape:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(f"parameter {name} has shape {tuple(x.shape)}, the model config asks for {info.shape}")
        # a device of the CPU may take a host array's memory as it is, and the caller may go on changing that
        return put(x if isinstance(x, jax.Array) else np.array(x), named(mesh, rules, info.axes))

    placed: Params = jax.tree_util.tree_map_with_path(place, infos, given)
    return placed


def _created(name: str, infos: Any, seed: int) -> Any:
    """First values of a part that no checkpoint of a model has: the same on every mesh."""
    rng = np.random.default_rng([seed, *name.encode()])
    return jax.tree.map(lambda info: (rng.normal(size=info.shape) * info.stddev).astype(np.float32), infos)


def init_state(
    params: Params,
    model: ModelConfig,
    algo: AlgoConfig,
    tx: optax.GradientTransformation,
    mesh: Mesh,
    rules: ShardingRules,
    *,
    offload: bool = False,
) -> TrainState:
    """State of a run that starts from `params`. Call under `jax.set_mesh(mesh)`. offload: moments on the host."""
    whole = NamedSharding(mesh, PartitionSpec())
    placed = place_params(params, model, algo, mesh, rules)
    state: TrainState = {
        "params": placed,
        "opt_state": jax.tree.map(lambda x: _on_mesh(x, whole, offload), jax.jit(tx.init)(split(placed, algo)[0])),
        "step": put(np.zeros((), np.int32), whole),
        "updates": put(np.zeros((), np.int32), whole),
    }
    if algo.reference:
        if algo.lora is None:  # else the model under the adapters is the reference
            state["reference"] = model_of(placed)
        state["kl"] = {
            "coef": put(np.float32(algo.kl_coef), whole),
            "recent": put(np.full(WINDOW, np.nan, np.float32), whole),
            "hold": put(np.zeros((), np.int32), whole),
        }
    return state


def model_of(params: Params) -> Params:
    """The model alone, without adapters and critic."""
    return {name: leaf for name, leaf in params.items() if name not in ADDED}


def reference_of(state: TrainState) -> Params:
    """Parameters of the reference policy."""
    reference: Params = state["reference"] if "reference" in state else model_of(state["params"])
    return reference


def _on_mesh(x: jax.Array, whole: NamedSharding, offload: bool) -> jax.Array:
    """Counts get the mesh's replicated sharding, so that a restored state is placed as a fresh one is."""
    if x.ndim == 0:
        return put(x, whole)
    if not offload:
        return x
    hosted: jax.Array = jax.device_put(x, x.sharding.with_memory_kind("pinned_host"))
    return hosted
