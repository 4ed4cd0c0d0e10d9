"""From the learner's mesh to the engine's device: one place, so that neither knows the other's layout."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import SingleDeviceSharding


def on_one_device(params: Any, device: jax.Device | None = None) -> Any:
    """`params` whole on one device; no copy where they lie there already (a mesh of one)."""
    # a bare Device would leave the Explicit mesh in the arrays' types
    return jax.device_put(params, SingleDeviceSharding(device or jax.devices()[0]))
