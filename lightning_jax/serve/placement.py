"""Where the engine's arrays lie: on one device, or split over a mesh of its own, slots by "data" and heads by "tensor".

Programs are the same ones: on a mesh the compiler follows the layout of what they are given, and what they return is
pinned to the layout that the next call was compiled for. The mesh is not the learner's, so the two need not agree.
Products whose inputs are split sum in another order: log-probs then differ in their last digits from one device's.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.sharding import ShardingRules
from lightning_jax.model.transformer import Params, parameters
from lightning_jax.publish.handover import on_one_device
from lightning_jax.serve.config import EngineConfig

AXES = ("data", "tensor")
RULES = ShardingRules(batch="data", embed=None)  # weights are whole along "data": every slot needs all of them


class Placement:
    """Puts weights and state where they belong. ValueError where sizes don't divide or devices are missing."""

    def __init__(self, model: ModelConfig, config: EngineConfig) -> None:
        self._model = model
        self._mesh: Mesh | None = None
        data, tensor = config.data_devices, config.tensor_devices
        if data * tensor == 1:
            return
        for size, by, what in (
            (config.slots, data, "slots"),
            (model.num_kv_heads, tensor, "num_kv_heads"),
            (model.mlp_dim, tensor, "mlp_dim"),
            (model.vocab_size, tensor, "vocab_size"),
        ):
            if size % by:
                raise ValueError(f"{what}={size} cannot be split over {by} devices: it must be a multiple of them")
        if jax.device_count() < data * tensor:
            raise ValueError(
                f"data_devices={data} and tensor_devices={tensor} need {data * tensor} devices, "
                f"{jax.device_count()} found"
            )
        self._mesh = Mesh(np.asarray(jax.devices()[: data * tensor]).reshape(data, tensor), AXES)

    def weights(self, params: Params) -> Params:
        """The stacked tree, from whatever mesh it lies on."""
        if self._mesh is None:
            placed: Params = on_one_device(params)
            return placed
        shardings = jax.tree.map(lambda info: self._named(RULES.spec(info.axes)), parameters(self._model))
        placed = jax.device_put(params, shardings)
        return placed

    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Cache, slots and pool as `programs.new_state` makes them."""
        if self._mesh is None:
            return state
        cache, pool = self._named(PartitionSpec("data", "tensor")), self._named(PartitionSpec(None, "tensor"))
        layouts = {"keys": cache, "values": cache, "pool_keys": pool, "pool_values": pool}
        everywhere = self._named(PartitionSpec())
        return {name: jax.device_put(part, layouts.get(name, everywhere)) for name, part in state.items()}

    def returned(self, state: dict[str, Any]) -> Any:
        """`out_shardings` of a program that returns the state; None leaves them to the compiler."""
        return None if self._mesh is None else jax.tree.map(lambda x: x.sharding, state)

    @property
    def everywhere(self) -> Any:
        """Sharding of what every device holds whole; None on one device."""
        return None if self._mesh is None else self._named(PartitionSpec())

    def _named(self, spec: PartitionSpec) -> NamedSharding:
        assert self._mesh is not None
        return NamedSharding(self._mesh, spec)
