"""Every path against the dense one, forward and backward, on masks inside the lower triangle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lightning_jax.model.attention import ATTENTIONS, QUERY_BLOCK, causal_attention, dense_attention


@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name != "dense"])
@pytest.mark.parametrize("length", [1, QUERY_BLOCK - 1, QUERY_BLOCK, 2 * QUERY_BLOCK + 7])
def test_other_paths_equal_the_dense_one(name: str, length: int) -> None:
    keys = jax.random.split(jax.random.key(length), 4)
    q = jax.random.normal(keys[0], (2, length, 2, 3, 8))
    k, v = (jax.random.normal(key, (2, length, 2, 8)) for key in keys[1:3])
    mask = jnp.tril(jax.random.bernoulli(keys[3], 0.6, (2, length, length))) | jnp.eye(length, dtype=bool)

    def summed(attend):  # type: ignore[no-untyped-def]
        return jax.jit(jax.value_and_grad(lambda q, k, v: (attend(q, k, v, mask) ** 2).sum(), argnums=(0, 1, 2)))

    value, gradients = summed(ATTENTIONS[name])(q, k, v)
    expected, wanted = summed(dense_attention)(q, k, v)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for found, right in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_a_query_that_sees_nothing_gives_no_nan() -> None:
    q = jnp.ones((1, 4, 1, 1, 2))
    out = causal_attention(q, q[:, :, :, 0], q[:, :, :, 0], jnp.zeros((1, 4, 4), bool))
    assert np.isfinite(np.asarray(out)).all()
