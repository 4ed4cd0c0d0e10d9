"""Transitions → rows of fixed shapes. Host code, numpy only."""

from lightning_jax.batch.batch import MicroBatch, Plan, PlanStats, empty_micro_batch, plan, shapes
from lightning_jax.batch.config import BatchConfig
from lightning_jax.batch.entries import by_transition, per_token, per_transition

__all__ = [
    "BatchConfig",
    "MicroBatch",
    "Plan",
    "PlanStats",
    "by_transition",
    "empty_micro_batch",
    "per_token",
    "per_transition",
    "plan",
    "shapes",
]
