"""Which leaves of the parameters are trained; the others have neither gradient nor moments.

A tree is split into two trees without empty branches, and joined again inside the jitted programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lightning_jax.learner.config import AlgoConfig

CRITIC = ("value", "critic")
ADDED = ("lora", *CRITIC)  # parts that are no part of the model
Tree = dict[str, Any]


def is_trained(name: str, algo: AlgoConfig) -> bool:
    """Whether the leaf with this dotted name ("layers.q", "lora.q.a", "embed") is trained."""
    if algo.lora is not None and name.partition(".")[0] not in ADDED:
        return False
    return algo.frozen is None or re.fullmatch(algo.frozen, name) is None


def split(tree: Mapping[str, Any], algo: AlgoConfig) -> tuple[Tree, Tree]:
    """(trained, held). ValueError where nothing is left to train."""
    trained, held = _split(tree, algo, "")
    if not trained:
        raise ValueError(f"frozen={algo.frozen!r} leaves no parameter to train")
    return trained, held


def _split(tree: Mapping[str, Any], algo: AlgoConfig, prefix: str) -> tuple[Tree, Tree]:
    parts: tuple[Tree, Tree] = ({}, {})
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            for part, inner in zip(parts, _split(value, algo, f"{name}."), strict=True):
                if inner:
                    part[key] = inner
        else:
            parts[0 if is_trained(name, algo) else 1][key] = value
    return parts


def join(trained: Mapping[str, Any], held: Mapping[str, Any]) -> Tree:
    """The whole tree again."""
    result = dict(held)
    for key, value in trained.items():
        result[key] = join(value, result.get(key, {})) if isinstance(value, Mapping) else value
    return result
