"""Logical axes → mesh axes, in one place.

Arrays are described by logical axis names; `ShardingRules` says on which mesh axis each lies. The mesh is Explicit
(shardings are part of types), so a rule that doesn't fit fails while tracing instead of replicating in silence.
Without a mesh (`jax.set_mesh` not called) every function here is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor")
Axis = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ShardingRules:
    """Mesh axis (or axes) of every logical axis; None replicates."""

    batch: Axis = ("data", "fsdp")
    layers: Axis = None
    vocab: Axis = "tensor"
    embed: Axis = "fsdp"  # parameters only; activations keep D whole
    heads: Axis = "tensor"
    mlp: Axis = "tensor"

    def spec(self, axes: Sequence[str | None]) -> PartitionSpec:
        """PartitionSpec of an array with these axes; ValueError on an unknown name or a mesh axis used twice."""
        entries: list[Axis] = []
        used: set[str] = set()
        for name in axes:
            if name is not None and not hasattr(self, name):
                raise ValueError(f"unknown logical axis {name!r}; known are {list(self.__slots__)}")
            entry: Axis = getattr(self, name) if name is not None else None
            parts = (entry,) if isinstance(entry, str) else (entry or ())
            if used.intersection(parts):
                raise ValueError(f"mesh axis used twice by logical axes {tuple(axes)}: {entry!r}")
            used.update(parts)
            entries.append(entry)
        return PartitionSpec(*entries)


DEFAULT_RULES = ShardingRules()


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """Explicit mesh over the first data·fsdp·tensor devices; ValueError where there are fewer."""
    need, have = data * fsdp * tensor, jax.device_count()
    if need > have:
        raise ValueError(f"mesh data={data} fsdp={fsdp} tensor={tensor} needs {need} devices, {have} found")
    return jax.make_mesh(
        (data, fsdp, tensor), MESH_AXES, axis_types=(AxisType.Explicit,) * 3, devices=jax.devices()[:need]
    )


def has_mesh() -> bool:
    """Whether a mesh is set for the code being traced."""
    return not jax.sharding.get_abstract_mesh().empty


def out_spec(rules: ShardingRules, *axes: str | None) -> PartitionSpec | None:
    """Spec for an operation's `out_sharding`; None without a mesh."""
    return rules.spec(axes) if has_mesh() else None


def named(mesh: Mesh, rules: ShardingRules, axes: Sequence[str | None]) -> NamedSharding:
    """Sharding of an array with these logical axes on `mesh`."""
    return NamedSharding(mesh, rules.spec(axes))


def gathered(x: jax.Array, rules: ShardingRules, *axes: str | None) -> jax.Array:
    """`x` laid out by `axes` (None where it must be whole): how a parameter split over `fsdp` becomes usable."""
    return jax.sharding.reshard(x, rules.spec(axes)) if has_mesh() else x
