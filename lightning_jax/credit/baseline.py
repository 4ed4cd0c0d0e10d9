"""Advantages of rollouts against their group: which mean is taken off, which standard deviation divides.

"GRPO" names several estimators; here both levels are explicit (DeepSeekMath's GRPO: group, group; Dr. GRPO, Liu et al.
2025: group, none; LitePPO: group, batch; RLOO, Ahmadian et al. 2024: group, none, rloo).

Invariants: float64 on the host. A group whose rewards are all equal has advantage exactly 0, found by comparing the
rewards and not left to eps: in float32 eps lets rounding noise through as a gradient of up to .4. Invalid rollouts (no
reward is known) enter no statistic and get 0. It must see every rollout of a group: a row dropped before would move
the baseline of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_jax.configuration import check_keys, check_name, number
from lightning_jax.credit.allocation import Float64Array

Level = Literal["none", "group", "batch"]
Spread = Literal["mixed", "all_pass", "all_fail", "other"]  # other: all equal, neither 0 nor 1
ZeroVarianceOf = Literal["total", "outcome"]

_TOLERANCE = 1e-6  # relative: rewards nearer than this are equal


@dataclass(frozen=True, slots=True)
class BaselineConfig:
    """A group baseline."""

    mean_level: Level = "group"
    std_level: Level = "none"
    ddof: int = 1  # 1: unbiased variance, 0: biased
    eps: float = 1e-6  # added to the standard deviation
    rloo: bool = False  # scale by G/(G-1): leave-one-out. Needs mean_level: group, std_level: none
    zero_variance_of: ZeroVarianceOf = "total"  # outcome: also groups whose exact metric is constant, despite shaping

    def __post_init__(self) -> None:
        check_name(self.mean_level, get_args(Level), "baseline.mean_level")
        check_name(self.std_level, get_args(Level), "baseline.std_level")
        check_name(self.zero_variance_of, get_args(ZeroVarianceOf), "baseline.zero_variance_of")
        if self.ddof not in (0, 1):
            raise ValueError(f"baseline.ddof must be 0 or 1, got {self.ddof!r}")
        if number(self.eps, "baseline.eps") < 0:
            raise ValueError(f"baseline.eps must be >= 0, got {self.eps}")
        if self.mean_level == "none" and self.zero_variance_of == "outcome":
            raise ValueError(
                "baseline.zero_variance_of: outcome with mean_level: none compares no outcomes; set mean_level: group "
                "or batch, or zero_variance_of: total"
            )
        if self.mean_level == "none" and self.std_level != "none":
            raise ValueError(
                f"baseline.std_level: {self.std_level} without a mean divides uncentred rewards; set mean_level too"
            )
        if self.rloo and (self.mean_level, self.std_level) != ("group", "none"):
            raise ValueError(
                f"baseline.rloo needs mean_level: group and std_level: none, got {self.mean_level} and {self.std_level}"
            )

    @property
    def pooled(self) -> bool:
        """Whether members of a group are compared with one another."""
        return "group" in (self.mean_level, self.std_level)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> BaselineConfig:
        """Read from plain data (YAML). Raises ValueError naming the nearest key for an unknown one."""
        check_keys(mapping, [one.name for one in fields(cls)], "baseline")
        return cls(**mapping)


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """One task's group."""

    key: str
    size: int  # members, invalid ones included
    valid: int
    mean: float  # of the valid members' rewards; 0 where there is none
    std: float  # with the config's ddof; 0 for fewer than two
    spread: Spread  # of the outcomes
    zero_variance: bool  # two or more valid members, all of equal reward
    constant_outcome: bool  # two or more valid members, all of equal outcome: what dynamic sampling drops


@dataclass(frozen=True, slots=True)
class Baseline:
    """Advantages f64[N] in the order given, and each group's statistics in order of first appearance."""

    advantages: Float64Array
    groups: tuple[GroupStatistics, ...]


def group_advantages(
    rewards: Sequence[float] | Float64Array,
    keys: Sequence[str],
    config: BaselineConfig,
    *,
    valid: Sequence[bool] | NDArray[np.bool_] | None = None,
    outcomes: Sequence[float] | Float64Array | None = None,
) -> Baseline:
    """Advantages of N rollouts. `keys`: their groups, of any sizes and in any order.

    `valid` (default: all) leaves rollouts out; `outcomes` (default: the rewards) are the exact task metrics. A group
    with fewer than two valid members gets 0. Raises ValueError for lengths that differ or a reward that is not finite.
    """
    totals = np.asarray(rewards, dtype=np.float64)
    mask = np.ones(totals.shape, np.bool_) if valid is None else np.asarray(valid, dtype=np.bool_)
    metrics = totals if outcomes is None else np.asarray(outcomes, dtype=np.float64)
    if not totals.shape == mask.shape == metrics.shape == (len(keys),):
        raise ValueError(
            f"rewards {totals.shape}, keys ({len(keys)},), valid {mask.shape} and outcomes {metrics.shape} must be of "
            "one length; pass one entry per rollout"
        )
    if not np.isfinite(totals[mask]).all():
        raise ValueError("a valid rollout has a reward that is not finite; mark it invalid or mend the reward term")
    members = _members(keys)
    groups = {key: _statistics(key, rows, totals, metrics, mask, config.ddof) for key, rows in members.items()}
    advantages = np.zeros(totals.shape)
    batch_std = _std(totals[mask], config.ddof)
    for key, rows in members.items():
        rows = rows[mask[rows]]
        advantages[rows] = _advantages(totals, rows, groups[key], mask, batch_std, config)
    return Baseline(advantages, tuple(groups.values()))


def _members(keys: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Key -> positions of its members, in order of first appearance."""
    positions: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        positions.setdefault(key, []).append(i)
    return {key: np.array(rows, dtype=np.intp) for key, rows in positions.items()}


def _advantages(
    totals: Float64Array,
    rows: NDArray[np.intp],
    group: GroupStatistics,
    mask: NDArray[np.bool_],
    batch_std: float,
    config: BaselineConfig,
) -> Float64Array:
    """Advantages of one group's valid rows."""
    values = totals[rows]
    if config.mean_level == "none":
        return values
    if config.zero_variance_of == "outcome" and group.constant_outcome:
        return np.zeros(values.shape)
    if config.pooled and (group.zero_variance or len(rows) < 2):
        return np.zeros(values.shape)
    compared = rows if config.mean_level == "group" else np.flatnonzero(mask)
    if _equal(totals[compared]):
        return np.zeros(values.shape)
    centred = values - totals[compared].mean()
    if config.rloo:
        return centred * (len(rows) / (len(rows) - 1))
    if config.std_level == "none":
        return centred
    return centred / ((group.std if config.std_level == "group" else batch_std) + config.eps)


def _statistics(
    key: str,
    rows: NDArray[np.intp],
    totals: Float64Array,
    metrics: Float64Array,
    mask: NDArray[np.bool_],
    ddof: int,
) -> GroupStatistics:
    kept = rows[mask[rows]]
    values, outcomes = totals[kept], metrics[kept]
    several = len(kept) > 1
    return GroupStatistics(
        key=key,
        size=len(rows),
        valid=len(kept),
        mean=float(values.mean()) if len(kept) else 0.0,
        std=_std(values, ddof),
        spread=_spread(outcomes),
        zero_variance=several and _equal(values),
        constant_outcome=several and _equal(outcomes),
    )


def _equal(values: Float64Array) -> bool:
    """Whether all values are one, within a relative tolerance: decided on the values, not on their deviation."""
    if values.size < 2:
        return True
    return bool(np.max(values) - np.min(values) <= _TOLERANCE * max(1.0, float(np.max(np.abs(values)))))


def _std(values: Float64Array, ddof: int) -> float:
    return float(values.std(ddof=ddof)) if values.size > 1 else 0.0


def _spread(outcomes: Float64Array) -> Spread:
    if outcomes.size == 0 or not _equal(outcomes):
        return "other" if outcomes.size == 0 else "mixed"
    if np.min(outcomes) >= 1.0 - _TOLERANCE:
        return "all_pass"
    return "all_fail" if np.max(outcomes) <= _TOLERANCE else "other"


def summary(baseline: Baseline) -> dict[str, float]:
    """Figures of the groups for logging. Zero-variance groups are split by outcome: too easy, too hard, neither."""
    groups = baseline.groups
    count = max(1, len(groups))
    flat = [group for group in groups if group.zero_variance]
    return {
        "baseline/groups": float(len(groups)),
        "baseline/singletons": float(sum(group.valid == 1 for group in groups)),
        "baseline/empty": float(sum(group.valid == 0 for group in groups)),
        "baseline/zero_variance": len(flat) / count,
        "baseline/zero_variance_all_pass": sum(group.spread == "all_pass" for group in flat) / count,
        "baseline/zero_variance_all_fail": sum(group.spread == "all_fail" for group in flat) / count,
        "baseline/zero_variance_other": sum(group.spread not in ("all_pass", "all_fail") for group in flat) / count,
        "baseline/constant_outcome": sum(group.constant_outcome for group in groups) / count,
        "baseline/advantage_abs_mean": float(np.abs(baseline.advantages).mean()) if baseline.advantages.size else 0.0,
    }
