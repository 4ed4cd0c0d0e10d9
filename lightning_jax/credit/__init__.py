"""Credit: one trajectory's reward to its transitions, and rollouts' advantages against their group."""

from lightning_jax.credit.assign import Credits, assign
from lightning_jax.credit.baseline import Baseline, BaselineConfig, GroupStatistics, group_advantages, summary
from lightning_jax.credit.config import CreditConfig, DynamicGamma
from lightning_jax.credit.score import score_transitions
from lightning_jax.credit.table import STRATEGIES, CreditStrategy

__all__ = [
    "STRATEGIES",
    "Baseline",
    "BaselineConfig",
    "CreditConfig",
    "CreditStrategy",
    "Credits",
    "DynamicGamma",
    "GroupStatistics",
    "assign",
    "group_advantages",
    "score_transitions",
    "summary",
]
