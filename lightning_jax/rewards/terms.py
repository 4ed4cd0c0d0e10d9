"""What a reward is made of: terms, each a function of one task and one trajectory.

A term gives a number, best in [0, 1] with 1 the best, so that weights mean what they say. It judges what the agent
left behind and never raises for that: missing or malformed output is worth 0. A study brings its own terms as a plain
mapping name -> callable and may add the generic ones from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from lightning_jax.types import Task, Trajectory


class Term(Protocol):
    """One component of a reward. Must be safe to call from several threads."""

    def __call__(self, task: Task, trajectory: Trajectory, /) -> float:
        """The term's value; Unscorable where it cannot be known."""
        ...


class Unscorable(Exception):
    """A term cannot know its value (a judge is down, no reward was reported): the trajectory is left out, not 0."""


def generic(max_calls: int) -> Mapping[str, Term]:
    """The terms any study can use, by name. `max_calls`: see `efficiency`."""
    return {
        "reported": reported,
        "succeeded": succeeded,
        "valid_tool_calls": valid_tool_calls,
        "efficiency": efficiency(max_calls),
    }


def reported(task: Task, trajectory: Trajectory) -> float:
    """The reward that the client reported for the rollout. Raises Unscorable where it reported none."""
    if "reward" not in trajectory.reported:
        raise Unscorable(f"no reward was reported for rollout {trajectory.rollout_id}")
    return trajectory.reported["reward"]


def reported_component(name: str) -> Term:
    """A term that reads one component the client reported; 0 where it is not there."""

    def component(task: Task, trajectory: Trajectory) -> float:
        return trajectory.reported.get(name, 0.0)

    return component


def succeeded(task: Task, trajectory: Trajectory) -> float:
    """1 where the agent came to its end without an error, else 0."""
    return float(trajectory.outcome.status == "succeeded")


def valid_tool_calls(task: Task, trajectory: Trajectory) -> float:
    """The share of the policy's tool calls whose verdict is "ok"; 0, so nothing to be paid, where it made none.

    Calls that nobody saw answered ("unknown") are in the share and not among the good. Verdicts: `types.ToolVerdict`.
    """
    verdicts = [tool.verdict for transition in trajectory.transitions for tool in transition.tools]
    return verdicts.count("ok") / len(verdicts) if verdicts else 0.0


def overlong(max_tokens: int, buffer: int) -> Term:
    """A term that falls from 1 to 0 over the last `buffer` tokens before `max_tokens`, by the longest response.

    DAPO's soft overlong punishment (arXiv 2503.14476 eq. 13) is this term with form: penalty and its factor as weight.
    Raises ValueError for a buffer that isn't within the limit.
    """
    if not 0 < buffer <= max_tokens:
        raise ValueError(f"overlong needs 0 < buffer <= max_tokens, got buffer={buffer} and max_tokens={max_tokens}")

    def term(task: Task, trajectory: Trajectory) -> float:
        longest = max((len(t.response_ids) for t in trajectory.transitions), default=0)
        return 1.0 - min(1.0, max(0.0, (longest - (max_tokens - buffer)) / buffer))

    return term


def efficiency(max_calls: int) -> Term:
    """A term 1 - (calls-1)/(max_calls-1), clipped to [0, 1]: 1 for one LLM call, 0 for `max_calls` or more.

    An attempt that did not succeed, or made no call, gets 0: giving up early is not efficient. Gate the term on the
    outcome all the same, or a quick wrong answer is paid. Raises ValueError for `max_calls` below 2.
    """
    if max_calls < 2:
        raise ValueError(f"efficiency needs max_calls >= 2, got {max_calls}; with one call there is nothing to save")

    def term(task: Task, trajectory: Trajectory) -> float:
        calls = len(trajectory.transitions)
        if calls == 0 or trajectory.outcome.status != "succeeded":
            return 0.0
        return min(1.0, max(0.0, 1.0 - (calls - 1) / (max_calls - 1)))

    return term
