"""Trajectories for the tests of rewards and credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_jax.types import Outcome, Score, Trajectory, Transition


def trajectory(
    calls: int = 1,
    *,
    rollout_id: str = "r",
    task_id: str = "t",
    agents: Sequence[str] | None = None,
    rewards: Sequence[float] | None = None,
    status: Any = "succeeded",
    output: Mapping[str, Any] | None = None,
    reported: Mapping[str, float] | None = None,
) -> Trajectory:
    """A trajectory of `calls` transitions, or of one per agent."""
    names = list(agents) if agents is not None else ["agent"] * calls
    steps = list(rewards) if rewards is not None else [0.0] * len(names)
    return Trajectory(
        rollout_id=rollout_id,
        task_id=task_id,
        sample=0,
        step=0,
        mode="train",
        outcome=Outcome(status=status, output=output or {}),
        transitions=tuple(
            Transition(
                call_id=f"{rollout_id}-{k}",
                index=k,
                agent=name,
                prompt_ids=np.array([1, 2], np.int32),
                response_ids=np.array([3], np.int32),
                rollout_logps=np.array([-0.5], np.float32),
                temperature=1.0,
                policy_version=0,
                finish_reason="stop",
                reward=reward,
            )
            for k, (name, reward) in enumerate(zip(names, steps, strict=True))
        ),
        reported=reported or {},
    )


def scored(total: float, *, outcome: float | None = None, valid: bool = True) -> Score:
    """A score with one component, `task`."""
    return Score(total=total, components={"task": total}, outcome=total if outcome is None else outcome, valid=valid)
