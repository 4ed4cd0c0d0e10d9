"""Initial embeddings: tokens that are spelt alike start near each other, and each keeps a direction of its own."""

from __future__ import annotations

import numpy as np

from lightning_jax.model.spelling import spelled_embeddings

TOKENS = ["<|end|>", " 1", " 7", "7", " Anna", " Anne", " table", " tables", " zebra", "'", "", "�"]


def test_rows_of_length_one_that_depend_on_the_seed() -> None:
    rows = spelled_embeddings(TOKENS, 64, seed=3)
    assert rows.shape == (len(TOKENS), 64)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(rows, spelled_embeddings(TOKENS, 64, seed=3))
    assert not np.allclose(rows, spelled_embeddings(TOKENS, 64, seed=4))


def test_alike_is_near_and_nothing_coincides() -> None:
    rows = dict(zip(TOKENS, spelled_embeddings(TOKENS, 4096, seed=0), strict=True))
    assert rows[" 1"] @ rows[" 7"] > rows[" 1"] @ rows[" zebra"] + 0.1  # numbers
    assert rows[" table"] @ rows[" tables"] > rows[" table"] @ rows[" zebra"] + 0.03  # the same letters
    assert rows[" Anna"] @ rows[" Anne"] > rows[" Anna"] @ rows[" table"] + 0.1
    assert max(rows[a] @ rows[b] for a in TOKENS for b in TOKENS if a != b) < 0.9
