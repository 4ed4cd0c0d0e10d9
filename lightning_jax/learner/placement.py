"""Between host arrays and a mesh, which may reach over several processes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray


def put(x: Any, sharding: NamedSharding) -> jax.Array:
    """`x`, the same on every process, in `sharding`; each process copies only what its devices hold."""
    if sharding.is_fully_addressable or isinstance(x, jax.Array):
        placed: jax.Array = jax.device_put(x, sharding)
        return placed
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def fetch(x: jax.Array) -> NDArray[Any]:
    """`x` whole on the host of every process."""
    if x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    from jax.experimental import multihost_utils  # only where there are several processes

    return np.asarray(multihost_utils.process_allgather(x, tiled=True))
