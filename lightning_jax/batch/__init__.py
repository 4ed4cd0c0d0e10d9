"""Transitions → rows of fixed shapes. Host code, numpy only."""

from lightning_jax.batch.batch import MicroBatch, Plan, PlanStats, empty_micro_batch, per_transition, plan, shapes
from lightning_jax.batch.config import BatchConfig

__all__ = [
    "BatchConfig",
    "MicroBatch",
    "Plan",
    "PlanStats",
    "empty_micro_batch",
    "per_transition",
    "plan",
    "shapes",
]
