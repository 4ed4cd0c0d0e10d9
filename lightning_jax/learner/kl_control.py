"""What becomes of the KL coefficient after an update. Host code; the memory lies in the train state."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_jax.learner.config import AlgoConfig

GUARD_RAISE, GUARD_DECAY, GUARD_HOLD = 3.0, 0.9, 10
WINDOW = 3  # updates whose mean KL the guard looks at


@dataclass(frozen=True, slots=True)
class KlMemory:
    """What the controller remembers between updates."""

    coef: float  # of the next update
    recent: tuple[float, ...]  # KL of the last updates that measured one, at most WINDOW of them, newest last
    hold: int  # updates that the guard still waits
    fired: bool = False


def next_coefficient(memory: KlMemory, kl: float, rollouts: int, config: AlgoConfig) -> KlMemory:
    """Memory after an update of mean KL `kl` over `rollouts`.

    adaptive: β·(1 + clip(kl/target - 1, ±.2)·rollouts/horizon) (Ziegler et al. 2019, arXiv 1909.08593, 2.2).

    guard: when the mean KL of the last updates passes `blowup`, β := min(3β, kl_max) and hold for 10 updates; then β·.9
    per healthy update, down to the configured β. Where that is 0 there is nothing to multiply: β := kl_max.

    A KL that is not finite says nothing and changes nothing: the optimiser refused such a step as well.
    """
    if not math.isfinite(kl):
        return KlMemory(memory.coef, memory.recent, memory.hold)
    recent = (*memory.recent, kl)[-WINDOW:]
    if config.kl_control == "adaptive":
        error = min(max(kl / config.kl_target - 1.0, -0.2), 0.2)
        return KlMemory(memory.coef * (1.0 + error * rollouts / config.kl_horizon), recent, memory.hold)
    if config.kl_control == "guard":
        if memory.hold > 0:
            return KlMemory(memory.coef, recent, memory.hold - 1)
        if sum(recent) / len(recent) > config.blowup:
            raised = memory.coef * GUARD_RAISE if config.kl_coef > 0 else config.kl_max
            return KlMemory(min(raised, config.kl_max), recent, GUARD_HOLD, fired=True)
        return KlMemory(max(memory.coef * GUARD_DECAY, config.kl_coef), recent, 0)
    return KlMemory(memory.coef, recent, memory.hold)
