"""Exports of every family with weights of their own, and the logits that this project computes with them.

By hand, where torch lives in another environment:

    python -m tests.model.exports OUT                       # here
    python scripts/make_parity_fixtures.py --check OUT      # there: transformers reads OUT, torch computes
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.hf import export_hf, load_hf
from lightning_jax.model.transformer import Params, forward, head

PARITY = Path(__file__).parents[1] / "golden" / "parity"
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")


def logits_of(config: ModelConfig, params: Params, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """f32[B,T,V]."""
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    mask = positions[:, :, None] >= positions[:, None, :]
    hidden = forward(params, config, jnp.asarray(tokens), positions, mask)
    return np.asarray(jnp.einsum("btd,vd->btv", hidden, head(params)))


def write_export(family: str, folder: Path) -> None:
    """The family's fixture with every weight moved, exported, and logits.npz (tokens, logits) beside it."""
    config, params = load_hf(PARITY / family)
    rng = np.random.default_rng(1)
    moved = jax.tree.map(lambda x: x + np.float32(0.05) * rng.standard_normal(x.shape, np.float32), params)
    tokens = np.load(PARITY / family / "logits.npz")["tokens"]
    export_hf(moved, config, None, folder)
    np.savez_compressed(folder / "logits.npz", tokens=tokens, logits=logits_of(config, moved, tokens))


if __name__ == "__main__":
    for name in FAMILIES:
        write_export(name, Path(sys.argv[1]) / name)
