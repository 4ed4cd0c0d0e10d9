"""A model and learner small enough for tests."""

from __future__ import annotations

from typing import Any

import jax

from lightning_jax.batch import BatchConfig
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.transformer import Params, init_params
from tests.batch.examples import VOCAB

MODEL = ModelConfig(
    vocab_size=VOCAB, num_layers=2, embed_dim=16, mlp_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, qk_norm=True
)
BATCH = BatchConfig(buckets=(64,), micro_batch_tokens=256)


def params(seed: int = 0) -> Params:
    """Scaled up, so that attention and the head are far from uniform and a wrong mask shows."""
    return jax.tree.map(lambda x: x * 2 if x.ndim > 1 else x, init_params(MODEL, jax.random.key(seed)))


def learner(
    batch: BatchConfig = BATCH, learning_rate: float = 1e-2, mesh: Any = None, grad_clip: float | None = 1.0, **algo: Any
) -> Learner:
    optimizer = OptimizerConfig(learning_rate=learning_rate, grad_clip=grad_clip)
    return Learner(MODEL, AlgoConfig(**algo), batch, optimizer, mesh)
