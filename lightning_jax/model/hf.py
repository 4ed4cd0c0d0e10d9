"""HF model directory ↔ parameter tree.

Strict both ways: every tensor of the files fills exactly one place and every leaf is filled, or loading fails with
both differences. Loading goes leaf by leaf into the given sharding, each device reading only its slice, so a host
never holds more than one leaf (of its own devices) beside the result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.hf_config import from_hf, to_hf
from lightning_jax.model.safetensors_files import open_tensors, write_file
from lightning_jax.model.sharding import DEFAULT_RULES, ShardingRules, named
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.model.transformer import ParameterInfo, Params, parameters

TOP_KEYS = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
LAYER_KEYS = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
"""Leaf → name in HF files. The stored weights are [out, in] on both sides; heads only reshape."""


def tensor_names(config: ModelConfig) -> dict[str, tuple[str, int | None]]:
    """HF tensor name → (leaf of `parameters`, layer or None for the top), leaf by leaf."""
    names: dict[str, tuple[str, int | None]] = {}
    for leaf, info in parameters(config).items():
        if leaf != "layers":
            names[TOP_KEYS[leaf]] = (leaf, None)
            continue
        for inner in info:
            for layer in range(config.num_layers):
                names[f"model.layers.{layer}.{LAYER_KEYS[inner]}"] = (inner, layer)
    return names


def read_config(directory: str | Path) -> ModelConfig:
    """ModelConfig of a HF directory's config.json."""
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise ValueError(f"no config.json in {path.parent}: a HF model directory has one beside its *.safetensors")
    return from_hf(json.loads(path.read_text(encoding="utf-8")))


def load_hf(
    directory: str | Path, *, dtype: str = "float32", mesh: Mesh | None = None, rules: ShardingRules = DEFAULT_RULES
) -> tuple[ModelConfig, Params]:
    """Read config and weights of a llama, mistral, qwen2 or qwen3 directory.

    Args:
        directory: config.json and *.safetensors (sharded with an index, or not) in f32, f16 or bf16.
        dtype: what the leaves become.
        mesh: where given, every leaf is created in `rules`' sharding; each process reads only what its devices hold.

    Raises:
        ValueError: unsupported config; tensors missing, left over or of another shape.
    """
    config = read_config(directory)
    return config, params_from_tensors(config, open_tensors(directory), dtype=dtype, mesh=mesh, rules=rules)


def params_from_tensors(
    config: ModelConfig,
    tensors: Mapping[str, NDArray[Any]],
    *,
    dtype: str = "float32",
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
) -> Params:
    """Parameter tree from tensors by HF name (lazily mapped ones are sliced, not read whole); strict as `load_hf`."""
    _check_names(config, tensors)
    tree = parameters(config)

    def place(leaf: str, info: ParameterInfo, stacked: bool) -> jax.Array:
        sources = [tensors[f"model.layers.{i}.{LAYER_KEYS[leaf]}"] for i in range(config.num_layers)] if stacked else []
        return _place(leaf, sources or [tensors[TOP_KEYS[leaf]]], info, stacked, dtype, mesh, rules)

    params: Params = {}
    for leaf, info in tree.items():
        if leaf == "layers":
            params["layers"] = {name: place(name, inner, True) for name, inner in info.items()}
        else:
            params[leaf] = place(leaf, info, False)
    return params


def export_hf(
    params: Params, config: ModelConfig, tokenizer: Tokenizer | None, directory: str | Path, *, dtype: str = "float32"
) -> None:
    """Write a directory that transformers (and `load_hf`) loads: config.json, model.safetensors, tokenizer files.

    Sharded leaves are gathered one at a time; with several processes all must call, process 0 writes.
    """
    folder = Path(directory)
    eos_ids, pad_id = ((), None) if tokenizer is None else (tokenizer.eos_ids, tokenizer.pad_id)
    values = to_hf(config, dtype=dtype, eos_ids=eos_ids, pad_id=pad_id)
    tensors = _host_tensors(params, config)
    if jax.process_index() != 0:
        for _, _, read in tensors:
            read()
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "model.safetensors", tensors, dtype=dtype)
    (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if tokenizer is not None:
        tokenizer.save(folder)


def _check_names(config: ModelConfig, tensors: Mapping[str, NDArray[Any]]) -> None:
    wanted = set(tensor_names(config))
    found = {name for name in tensors if not name.endswith("rotary_emb.inv_freq")}  # a derived table of old files
    doubled, embed = TOP_KEYS["head"], TOP_KEYS["embed"]
    if config.tie_embeddings and {doubled, embed} <= found and np.array_equal(tensors[doubled], tensors[embed]):
        found.discard(doubled)  # some exporters write the tied matrix twice
    if wanted != found:
        missing, left = sorted(wanted - found), sorted(found - wanted)
        raise ValueError(
            f"weights and config.json differ: {len(missing)} tensors missing {missing[:8]}, "
            f"{len(left)} left over {left[:8]}; check num_hidden_layers, tie_word_embeddings and model_type"
        )


def _place(
    leaf: str,
    sources: list[NDArray[Any]],
    info: ParameterInfo,
    stacked: bool,
    dtype: str,
    mesh: Mesh | None,
    rules: ShardingRules,
) -> jax.Array:
    """One leaf from its tensor (or one per layer), each device's part read on its own."""
    shape = info.shape[1:] if stacked else info.shape
    for number, source in enumerate(sources):
        if source.shape != _folded(leaf, shape):
            raise ValueError(
                f"tensor {number} of leaf {leaf!r} has shape {source.shape}; config.json says {_folded(leaf, shape)}"
            )
    views = [source.reshape(shape) for source in sources]
    target = jnp.dtype(dtype)

    def part(index: tuple[slice, ...] | None) -> NDArray[Any]:
        index = index or (slice(None),) * len(info.shape)
        if not stacked:
            return np.array(views[0][index], dtype=target)  # a copy: jax may keep the buffer, the file may change
        return np.stack([np.asarray(view[index[1:]], dtype=target) for view in views[index[0]]])

    if mesh is None:
        return jnp.asarray(part(None))
    return jax.make_array_from_callback(info.shape, named(mesh, rules, info.axes), part)


def _folded(leaf: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """[out, in] (or [out]) shape of one layer's leaf as HF stores it: the head axes folded."""
    if len(shape) == 1 or leaf.endswith("bias"):
        return (math.prod(shape),)
    if leaf == "o":
        return (shape[0], math.prod(shape[1:]))
    return (math.prod(shape[:-1]), shape[-1])


def _host_tensors(params: Params, config: ModelConfig) -> list[tuple[str, tuple[int, ...], Any]]:
    """(HF name, HF shape, read) per tensor; read() returns it on the host, gathering one leaf at a time."""
    tree = parameters(config)
    held: dict[str, NDArray[Any]] = {}  # the leaf gathered last

    def read(leaf: str, layer: int | None) -> NDArray[Any]:
        if leaf not in held:
            held.clear()
            held[leaf] = _gather(params[leaf] if layer is None else params["layers"][leaf])
        return held[leaf] if layer is None else held[leaf][layer]

    tensors = []
    for name, (leaf, layer) in tensor_names(config).items():
        shape = tree[leaf].shape if layer is None else tree["layers"][leaf].shape[1:]
        tensors.append((name, _folded(leaf, shape), partial(read, leaf, layer)))
    return tensors


def _gather(array: jax.Array) -> NDArray[Any]:
    if not array.is_fully_addressable:
        from jax.experimental import multihost_utils  # only where there are several processes

        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(jax.device_get(array))
