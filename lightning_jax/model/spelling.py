"""Initial embeddings that know how tokens are spelt, for models trained from scratch.

A row is the sum of three random directions: the token's own, one for its shape (number, capitalised, lower case), and
those of its bytes (subword sums as in fastText, arXiv 1607.04606). So a rare name or digit is from the first step on
recognised as a name or a digit, and copying learnt on frequent tokens carries over to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHARE = 1.0  # length of the shape's and of the bytes' direction; the token's own is 1
_SHAPES = {
    "number": re.compile(r" ?\d+"),
    "capitalised": re.compile(r" ?[A-Z]\w*"),
    "lower": re.compile(r" ?[a-z_]\w*"),
}


def spelled_embeddings(tokens: Sequence[str], dim: int, seed: int) -> NDArray[np.float32]:
    """f32[len(tokens), dim]: rows of length 1, the same for the same texts, dim and seed."""
    generator = np.random.default_rng(seed)
    of_shape = dict(zip(_SHAPES, generator.standard_normal((len(_SHAPES), dim)), strict=True))
    of_byte = generator.standard_normal((256, dim))
    rows = generator.standard_normal((len(tokens), dim))
    for row, token in zip(rows, tokens, strict=True):
        spelling = list(token.strip().encode())
        if spelling:
            row += SHARE * of_byte[spelling].sum(axis=0) * len(spelling) ** -0.5
        for name, pattern in _SHAPES.items():
            if pattern.fullmatch(token):
                row += SHARE * of_shape[name]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
