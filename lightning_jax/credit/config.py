"""What a credit strategy can be told: plain data, checked when it is read and not in the middle of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from lightning_jax.configuration import check_keys, check_name, number

Strategy = Literal["identical", "uniform", "exponential", "dynamic", "return", "terminal"]
Normalize = Literal["none", "mean", "sum"]
Direction = Literal["from_end", "from_start"]
ApplyTo = Literal["advantage", "reward"]
DynamicForm = Literal["power", "product"]
DynamicOver = Literal["steps", "training"]
ComponentOrder = Literal["filter_then_weight", "weight_then_mask"]


@dataclass(frozen=True, slots=True)
class DynamicGamma:
    """How gamma falls, in trajectories of more than `longer_than` transitions."""

    start: float = 0.9
    end: float = 0.7
    longer_than: int = 10  # K <= longer_than keeps the fixed gamma
    form: DynamicForm = "power"  # u_k = gamma_k^d; product: the gammas of the steps still to come, multiplied
    over: DynamicOver = "steps"  # gamma falls along the trajectory; training: along the run, equal for all steps

    def __post_init__(self) -> None:
        _check_gamma(self.start, "dynamic.start")
        _check_gamma(self.end, "dynamic.end")
        check_name(self.form, get_args(DynamicForm), "dynamic.form")
        check_name(self.over, get_args(DynamicOver), "dynamic.over")
        if self.longer_than < 0:
            raise ValueError(f"dynamic.longer_than must be >= 0, got {self.longer_than}")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> DynamicGamma:
        """Read from plain data; unknown keys are refused."""
        check_keys(mapping, [one.name for one in fields(cls)], "credit.dynamic")
        return cls(**mapping)


@dataclass(frozen=True, slots=True)
class CreditConfig:
    """A credit strategy and where its weights act."""

    strategy: Strategy = "uniform"
    gamma: float = 0.85  # (0, 1]; 1 makes exponential uniform
    normalize: Normalize = "mean"  # none: w = u; mean: weights average 1; sum: weights add up to 1
    direction: Direction = "from_end"  # the last transition weighs most; from_start: the first
    dynamic: DynamicGamma = field(default_factory=DynamicGamma)
    min_reward: float | None = None  # floor of a credited reward c_k; apply_to: reward only, meant for normalize: sum
    agent_weight: Mapping[str, float] = field(default_factory=dict)  # agent name or regex -> factor on the advantage
    rescale_agent_weight: bool = False  # rescale the factors of a trajectory's selected transitions to mean 1
    component: str | None = None  # regex an agent's whole name must match to be trained; None: all are
    component_order: ComponentOrder = "filter_then_weight"  # K counts the selected only; else weight all, then mask
    apply_to: ApplyTo = "advantage"  # A_{i,k} = A_i w_k; reward: c_k is the transition's reward
    step_weight: float = 0.0  # weight of a second advantage made of the intermediate rewards; apply_to: advantage only
    allow_pooled: bool = False  # apply_to: reward together with pooled group baselines, for ablations
    allow_double_count: bool = False  # GAE over credited rewards that don't add up to the rollout's, for ablations

    def __post_init__(self) -> None:
        check_name(self.strategy, get_args(Strategy), "credit strategy")
        check_name(self.normalize, get_args(Normalize), "credit.normalize")
        check_name(self.direction, get_args(Direction), "credit.direction")
        check_name(self.apply_to, get_args(ApplyTo), "credit.apply_to")
        check_name(self.component_order, get_args(ComponentOrder), "credit.component_order")
        _check_gamma(self.gamma, "gamma")
        if self.strategy == "return" and self.direction != "from_end":
            raise ValueError("strategy return discounts from the end only; use exponential with direction: from_start")
        if number(self.step_weight, "credit.step_weight") and self.apply_to == "reward":
            raise ValueError(
                f"credit.step_weight: {self.step_weight} with apply_to: reward counts intermediate rewards twice; set 0"
            )
        if self.min_reward is not None:
            number(self.min_reward, "credit.min_reward")
            if self.apply_to == "advantage":
                raise ValueError(
                    f"credit.min_reward: {self.min_reward} is a floor of credited rewards, but apply_to: advantage "
                    "hands out weights and no rewards: set apply_to: reward, or min_reward: null"
                )
        for pattern, factor in self.agent_weight.items():
            _check_pattern(pattern, "credit.agent_weight")
            number(factor, f"credit.agent_weight of {pattern!r}")
        if self.component is not None:
            _check_pattern(self.component, "credit.component")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> CreditConfig:
        """Read from plain data (YAML). Raises ValueError naming the nearest key for an unknown one."""
        check_keys(mapping, [one.name for one in fields(cls)], "credit")
        values = dict(mapping)
        if "dynamic" in values:
            values["dynamic"] = DynamicGamma.from_mapping(values["dynamic"] or {})
        if values.get("agent_weight", {}) is None:
            values["agent_weight"] = {}
        return cls(**values)

    @property
    def unbalanced(self) -> str | None:
        """The setting by which a rollout's credited rewards do not add up to its reward; None where they do.

        Whoever adds them up again along the rollout, as GAE does, needs None: with `normalize: mean` the first of K
        calls would be told that the rollout earned K times its reward.
        """
        if self.strategy in ("identical", "return"):
            return f"credit.strategy={self.strategy}"
        if self.strategy != "terminal" and self.normalize != "sum":
            return f"credit.normalize={self.normalize}"
        if self.min_reward is not None:
            return f"credit.min_reward={self.min_reward}"
        if self.component is not None and self.component_order == "weight_then_mask":
            return f"credit.component_order={self.component_order}"
        return None

    def check_placement(self, *, pooled: bool) -> None:
        """Raise ValueError where credited rewards would enter a baseline that pools transitions of several rollouts.

        Pooled, an early step of a long success is worth less than the group's mean and gets punished, though every
        step of that rollout led to the right answer.
        """
        if self.apply_to == "reward" and pooled and not self.allow_pooled:
            raise ValueError(
                "credit.apply_to: reward with a group baseline compares early steps with late ones and punishes the "
                "first steps of long successes; use apply_to: advantage, or a baseline with mean_level: none (critic), "
                "or set allow_pooled: true to run this as an ablation"
            )


def _check_gamma(value: float, name: str) -> None:
    if not 0.0 < number(value, f"credit.{name}") <= 1.0:
        raise ValueError(f"credit.{name} must be in (0, 1], got {value}; .7 to .9 is usual, 1 means no discount")


def _check_pattern(pattern: str, where: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{where}: {pattern!r} is no regular expression ({error})") from error
