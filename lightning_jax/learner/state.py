"""The train state: a plain dict of arrays, all of it saved.

params       model's tree (and `value`, the critic's head)
opt_state    optax's
step         i32[], optimiser steps
updates      i32[], calls of update: seeds the mini-batches, ends the critic's warm-up
key          u32[2], key data of the run's randomness
reference    frozen copy of the first params, only with a KL term
kl           coefficient and memory of its controller, only with a KL term
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.value import value_parameters
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.sharding import ShardingRules, named
from lightning_jax.model.transformer import ParameterInfo, Params, parameters

TrainState = dict[str, Any]
KL_MEMORY = 3  # updates whose mean KL the guard looks at


def abstract_params(model: ModelConfig, algo: AlgoConfig) -> dict[str, Any]:
    """ParameterInfo of every leaf of state["params"]."""
    tree = dict(parameters(model))
    if algo.critic:
        tree["value"] = value_parameters(model.embed_dim)
    return tree


def place_params(params: Params, model: ModelConfig, algo: AlgoConfig, mesh: Mesh, rules: ShardingRules) -> Params:
    """Copies of `params`' leaves in their shardings; the value head is created where it is missing.

    ValueError where names or shapes are not the model's.
    """
    infos = abstract_params(model, algo)
    given = dict(params)
    if "value" in infos and "value" not in given:
        given["value"] = {name: np.zeros(info.shape, np.float32) for name, info in infos["value"].items()}
    if "value" not in infos:
        given.pop("value", None)
    have, want = str(jax.tree.structure(given)), str(jax.tree.structure(infos))
    if have != want:
        raise ValueError(f"the parameters' tree {have} is not the one that the model config asks for: {want}")

    def place(path: Any, info: ParameterInfo, x: Any) -> jax.Array:
        if tuple(x.shape) != info.shape:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(f"parameter {name} has shape {tuple(x.shape)}, the model config asks for {info.shape}")
        placed: jax.Array = jax.device_put(x, named(mesh, rules, info.axes))
        return placed

    placed: Params = copied(jax.tree_util.tree_map_with_path(place, infos, given))
    return placed


def copied(tree: Any) -> Any:
    """New buffers with the same content and placement, by one program for the whole tree."""
    return jax.jit(lambda t: jax.tree.map(jnp.copy, t))(tree)


def init_state(
    params: Params,
    model: ModelConfig,
    algo: AlgoConfig,
    tx: optax.GradientTransformation,
    mesh: Mesh,
    rules: ShardingRules,
) -> TrainState:
    """State of a run that starts from `params`. Call under `jax.set_mesh(mesh)`."""
    whole = NamedSharding(mesh, PartitionSpec())
    placed = place_params(params, model, algo, mesh, rules)
    state: TrainState = {
        "params": placed,
        "opt_state": jax.tree.map(lambda x: _on_mesh(x, whole), jax.jit(tx.init)(placed)),
        "step": jax.device_put(np.zeros((), np.int32), whole),
        "updates": jax.device_put(np.zeros((), np.int32), whole),
        "key": jax.device_put(np.asarray(jax.random.key_data(jax.random.key(algo.seed))), whole),
    }
    if algo.reference:
        state["reference"] = copied({k: v for k, v in placed.items() if k != "value"})
        state["kl"] = jax.device_put(
            {
                "coef": np.float32(algo.kl_coef),
                "recent": np.zeros(KL_MEMORY, np.float32),
                "hold": np.zeros((), np.int32),
            },
            whole,
        )
    return state


def _on_mesh(x: jax.Array, whole: NamedSharding) -> jax.Array:
    """Counts get the mesh's replicated sharding, so that a restored state is placed as a fresh one is."""
    return jax.device_put(x, whole) if x.ndim == 0 else x


def abstract_state(state: TrainState) -> TrainState:
    """Shape, dtype and sharding of every leaf: what a checkpoint is restored into."""
    abstract: TrainState = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    return abstract
