"""Composes named terms into the one score of a trajectory, as plain data (YAML) says.

    form: weighted            # or gated: everything but the outcome counts only where the outcome is > 0
    outcome: execution        # the term that is the exact task metric
    terms:
      execution: 0.6          # short for {weight: 0.6}
      syntax: {weight: 0.4, gate: execution}                      # counts only where execution > 0
      efficiency: {weight: 0.1, form: penalty, gate: execution}   # costs weight * (1 - value), never pays
    on_failure: score         # or exclude

total = sum of weight*value over open terms - sum of weight*(1-value) over open penalties. Ungated shaping is a trap:
within a group that is wrong throughout, the one sample with some shaping reward gets, after division by the group's
standard deviation, the same advantage as a right sample in a mixed group. Hence `gated`, gates, and baselines without
the division for composed rewards.

Invariant: every term is evaluated and recorded, also with weight 0 or behind a closed gate, and the outcome is kept
apart from the total. Which failures are whose: an attempt that was lost (its runner died) or cancelled says nothing of
the policy and is always excluded (valid=False). One that failed, timed out or crashed may be the agent's own doing and
is scored on what it left behind (missing output is worth 0), unless `on_failure: exclude`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightning_jax.configuration import check_keys, check_name, number
from lightning_jax.rewards.terms import Term, Unscorable
from lightning_jax.types import AttemptStatus, Score, Task, Trajectory

logger = logging.getLogger(__name__)

Form = Literal["weighted", "gated"]
TermForm = Literal["term", "penalty"]
OnFailure = Literal["score", "exclude"]

INFRASTRUCTURE: frozenset[AttemptStatus] = frozenset(("lost", "cancelled"))
AGENT_FAILURES: frozenset[AttemptStatus] = frozenset(("failed", "timeout", "crashed"))


@dataclass(frozen=True, slots=True)
class Weighting:
    """How one term enters the total."""

    weight: float  # 0: recorded only
    form: TermForm = "term"  # penalty: subtracts weight * (1 - value)
    gate: str | None = None  # counts only where this term's value is > 0


@dataclass(frozen=True, slots=True)
class Composition:
    """A reward as data; see the module's text for the meaning of each part."""

    terms: Mapping[str, Weighting]  # in the order given
    outcome: str  # one of `terms`
    form: Form = "weighted"
    on_failure: OnFailure = "score"

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("a reward needs at least one term; give `terms: {name: weight}`")
        check_name(self.form, get_args(Form), "reward form")
        check_name(self.on_failure, get_args(OnFailure), "on_failure")
        check_name(self.outcome, self.terms, "outcome term")
        for name, weighting in self.terms.items():
            _check_weighting(name, weighting, self.terms)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Composition:
        """Read a composition from plain data. Raises ValueError naming the nearest key for an unknown one."""
        check_keys(mapping, ("form", "outcome", "terms", "on_failure"), "a reward")
        terms = mapping.get("terms")
        if not isinstance(terms, Mapping):
            raise ValueError(f"a reward's terms must map names to weights, got {terms!r}")
        weightings = {str(name): _weighting(str(name), value) for name, value in terms.items()}
        if "outcome" not in mapping and len(weightings) > 1:
            raise ValueError(f"name the outcome term: `outcome: <one of {', '.join(weightings)}>`")
        return cls(
            terms=weightings,
            outcome=mapping.get("outcome", next(iter(weightings), "")),
            form=mapping.get("form", "weighted"),
            on_failure=mapping.get("on_failure", "score"),
        )

    def check_terms(self, functions: Mapping[str, Term]) -> None:
        """Raise ValueError, naming the nearest one, where a term has no function: call it before the first rollout."""
        for name in self.terms:
            check_name(name, functions, "reward term")


def _weighting(name: str, value: Any) -> Weighting:
    if not isinstance(value, Mapping):
        return Weighting(number(value, f"the weight of term {name!r}"))
    check_keys(value, ("weight", "form", "gate"), f"term {name!r}")
    if "weight" not in value:
        raise ValueError(f"term {name!r} has no weight; give {{weight: <number>, ...}}, 0 to record it only")
    return Weighting(
        weight=number(value["weight"], f"the weight of term {name!r}"),
        form=value.get("form", "term"),
        gate=value.get("gate"),
    )


def _check_weighting(name: str, weighting: Weighting, terms: Mapping[str, Weighting]) -> None:
    check_name(weighting.form, get_args(TermForm), f"form of term {name!r}")
    if weighting.form == "penalty" and weighting.weight < 0:
        raise ValueError(f"penalty {name!r} has weight {weighting.weight}; below 0 it would pay, so make it positive")
    if weighting.gate is not None:
        check_name(weighting.gate, terms, f"gate of term {name!r}")
        if weighting.gate == name:
            raise ValueError(f"term {name!r} is gated on itself; gate it on another term")


def score(task: Task, trajectory: Trajectory, composition: Composition, functions: Mapping[str, Term]) -> Score:
    """The composed reward of one trajectory. `functions`: name -> term, a superset of the composition's names.

    Raises ValueError for an unknown term, or one whose value is not finite.
    """
    composition.check_terms(functions)
    if _is_excluded(trajectory.outcome.status, composition.on_failure):
        return _EXCLUDED
    try:
        values = {name: _value(name, functions[name], task, trajectory) for name in composition.terms}
    except Unscorable as reason:
        logger.warning("rollout %s of task %s is left out: %s", trajectory.rollout_id, task.task_id, reason)
        return _EXCLUDED
    return Score(total=total(values, composition), components=values, outcome=values[composition.outcome])


_EXCLUDED = Score(total=0.0, components={}, outcome=0.0, valid=False)


def total(values: Mapping[str, float], composition: Composition) -> float:
    """The total of the terms' values under the composition."""
    passed = values[composition.outcome] > 0
    summed = 0.0
    for name, weighting in composition.terms.items():
        if composition.form == "gated" and name != composition.outcome and not passed:
            continue
        if weighting.gate is not None and not values[weighting.gate] > 0:
            continue
        value = values[name]
        summed += weighting.weight * (value if weighting.form == "term" else value - 1.0)
    return summed


def _is_excluded(status: AttemptStatus, on_failure: OnFailure) -> bool:
    return status in INFRASTRUCTURE or (on_failure == "exclude" and status in AGENT_FAILURES)


def _value(name: str, term: Term, task: Task, trajectory: Trajectory) -> float:
    value = float(term(task, trajectory))
    if not math.isfinite(value):
        raise ValueError(
            f"reward term {name!r} gave {value} for rollout {trajectory.rollout_id} of task {task.task_id}; "
            "a term must be finite, or raise Unscorable where it cannot know"
        )
    return value
