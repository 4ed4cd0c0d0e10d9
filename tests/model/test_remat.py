"""What the backward pass keeps changes no gradient."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lightning_jax.model.transformer import REMAT_POLICIES, forward
from tests.learner.small import MODEL, params

TOKENS = jnp.arange(16).reshape(2, 8)
POSITIONS = jnp.broadcast_to(jnp.arange(8), (2, 8))
MASK = jnp.broadcast_to(jnp.tril(jnp.ones((8, 8), bool)), (2, 8, 8))


def gradient(remat: str) -> dict[str, jax.Array]:
    def loss(tree: dict[str, jax.Array]) -> jax.Array:
        return jnp.sum(forward(tree, MODEL, TOKENS, POSITIONS, MASK, remat=remat) ** 3)

    return jax.jit(jax.grad(loss))(params())


PLAIN = gradient("none")


@pytest.mark.parametrize("remat", [name for name in REMAT_POLICIES if name != "none"])
def test_gradients_are_those_of_keeping_everything(remat: str) -> None:
    same = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(same, gradient(remat), PLAIN)
