"""Rewards: named terms over a trajectory and their composition into one score, with every component kept."""

from lightning_jax.rewards.compose import Composition, Weighting, score
from lightning_jax.rewards.terms import (
    Term,
    Unscorable,
    efficiency,
    generic,
    reported,
    reported_component,
    valid_tool_calls,
)

__all__ = [
    "Composition",
    "Term",
    "Unscorable",
    "Weighting",
    "efficiency",
    "generic",
    "reported",
    "reported_component",
    "score",
    "valid_tool_calls",
]
