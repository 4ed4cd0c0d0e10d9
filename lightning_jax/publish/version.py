"""A version of the policy: its digest, and its weights as bytes that another process can serve from.

The critic's head (`params["value"]`) is no part of a policy: it is neither sent nor digested.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from lightning_jax.types import PolicyVersion

NOT_SERVED = frozenset({"value"})
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "I32": np.int32,
}


def flatten(params: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Nested dict → {"layers.q": host array}, C order, sorted by key."""
    flat: dict[str, NDArray[Any]] = {}

    def walk(prefix: str, tree: Mapping[str, Any]) -> None:
        for name, value in tree.items():
            if not prefix and name in NOT_SERVED:
                continue
            if isinstance(value, Mapping):
                walk(f"{prefix}{name}.", value)
            else:
                flat[prefix + name] = np.ascontiguousarray(jax.device_get(value))

    walk("", params)
    return dict(sorted(flat.items()))


def unflatten(flat: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The inverse of flatten."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[leaf] = value
    return tree


def params_digest(params: Mapping[str, Any]) -> str:
    """Hex blake2b of the leaves' bytes in the order of their dotted keys."""
    digest = hashlib.blake2b(digest_size=16)
    for value in flatten(params).values():
        digest.update(value.view(np.uint8).reshape(-1).data if value.ndim else value.tobytes())
    return digest.hexdigest()


def policy_version(params: Mapping[str, Any], version: int, step: int) -> PolicyVersion:
    """The record of these weights as `version`."""
    return PolicyVersion(version=version, digest=params_digest(params), step=step)


def safetensors_bytes(params: Mapping[str, Any]) -> bytes:
    """The policy's parameters as one safetensors file; dtypes are kept."""
    return save(flatten(params))


def params_from_safetensors(content: bytes) -> dict[str, Any]:
    """Nested dict of host arrays; ValueError where the bytes are no safetensors file or hold another dtype."""
    try:
        tensors = deserialize(content)
    except SafetensorError as error:
        raise ValueError(f"{len(content)} bytes are no safetensors file: {error}") from error
    flat = {}
    for name, tensor in tensors:
        if tensor["dtype"] not in _DTYPES:
            raise ValueError(f"parameter {name} has dtype {tensor['dtype']}; served are {sorted(_DTYPES)}")
        dtype = np.dtype(_DTYPES[tensor["dtype"]])
        flat[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"]).copy()
    return unflatten(flat)
