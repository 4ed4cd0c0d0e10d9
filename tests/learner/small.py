"""A model and learner small enough for tests."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from lightning_jax.batch import BatchConfig
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.transformer import ParameterInfo, Params, parameters
from tests.batch.examples import VOCAB

MODEL = ModelConfig(
    vocab_size=VOCAB, num_layers=2, embed_dim=16, mlp_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, qk_norm=True
)
BATCH = BatchConfig(buckets=(64,), micro_batch_tokens=256)


def params(seed: int = 0, model: ModelConfig = MODEL) -> Params:
    """Scaled up, so that attention and the head are far from uniform and a wrong mask shows."""
    rng = np.random.default_rng(seed)

    def draw(info: ParameterInfo) -> np.ndarray:
        if info.stddev is None:
            return np.ones(info.shape, np.float32)
        return (2 * info.stddev * rng.standard_normal(info.shape)).astype(np.float32)

    return jax.tree.map(draw, parameters(model))


def learner(
    batch: BatchConfig = BATCH,
    learning_rate: float = 1e-2,
    mesh: Any = None,
    grad_clip: float | None = 1.0,
    eps: float = 1e-8,
    **algo: Any,
) -> Learner:
    optimizer = OptimizerConfig(learning_rate=learning_rate, grad_clip=grad_clip, eps=eps)
    return Learner(MODEL, AlgoConfig(**algo), batch, optimizer, mesh)
