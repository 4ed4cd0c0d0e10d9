"""One sealed attempt to one trajectory: the token ids the engine sampled, in the order the agent asked.

Invariant: ids and log-probs pass through untouched (the very arrays of the call); nothing is re-tokenised. What cannot
be trained on is left out with a reason, so that the sum of transitions and quarantined calls is what came in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_jax import types
from lightning_jax.assemble.delivery import undelivered
from lightning_jax.assemble.identifiers import call_of_response
from lightning_jax.assemble.joins import Reading, read_spans
from lightning_jax.assemble.naming import AgentNaming, speakers
from lightning_jax.assemble.tools import tool_uses


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One call, reward or span that did not become part of the trajectory."""

    kind: str  # call | reward | span
    identity: str  # call_id, reward_id, or trace_id/span_id in hexadecimal
    reason: str  # a short fixed word, to be counted by; of spans see joins.Reading


@dataclass(frozen=True, slots=True)
class Assembled:
    """A trajectory of K >= 0 transitions, the spans that belong to it, and what was left out."""

    trajectory: types.Trajectory
    quarantined: tuple[Quarantined, ...]
    reading: Reading

    def reasons(self) -> Mapping[tuple[str, str], int]:
        """How many were left out, by (kind, reason)."""
        return Counter((item.kind, item.reason) for item in self.quarantined)


def assemble(sealed: types.SealedAttempt, agents: AgentNaming, late: Sequence[types.Span] = ()) -> Assembled:
    """Build the trajectory of a sealed attempt. Never raises for what an agent, engine or exporter sent.

    late: spans that came after the seal, for people who look; they name what nothing else names, and change no more.
    """
    quarantined: list[Quarantined] = []
    calls = _usable(sealed.calls, quarantined)
    reading = read_spans(calls, sealed.spans)
    quarantined += [
        Quarantined("span", f"{trace_id.hex()}/{span_id.hex()}", reason)
        for (trace_id, span_id), reason in reading.quarantined.items()
    ]
    afterwards = read_spans(calls, (*sealed.spans, *late)) if late else None
    spoken = speakers(calls, reading, agents, afterwards)
    tools = tool_uses(calls, reading, sealed.outcome)
    intermediate, components, reported = _rewards(sealed.rewards, {call.call_id for call in calls}, quarantined)
    transitions = tuple(
        types.Transition(
            call_id=call.call_id,
            index=index,
            agent=spoken[call.call_id].agent,
            prompt_ids=call.prompt_ids,
            response_ids=call.response_ids,
            rollout_logps=call.rollout_logps,
            temperature=call.sampling.temperature,
            policy_version=call.policy_version,
            finish_reason=call.finish_reason,
            reward=intermediate.get(call.call_id, 0.0),
            text=call.text,
            node=spoken[call.call_id].node,
            parents=spoken[call.call_id].parents,
            tools=tools.get(call.call_id, ()),
            components=components.get(call.call_id, {}),
            started_ns=call.started_ns,
            ended_ns=call.ended_ns,
            kept_mass=call.sampling.kept_mass,
        )
        for index, call in enumerate(calls)
    )
    rollout = sealed.rollout
    trajectory = types.Trajectory(
        rollout_id=rollout.rollout_id,
        task_id=rollout.task_id,
        sample=rollout.sample,
        step=rollout.step,
        mode=rollout.mode,
        outcome=sealed.outcome,
        transitions=transitions,
        reported=reported,
    )
    return Assembled(trajectory, tuple(quarantined), reading)


def _usable(calls: Sequence[types.Call], quarantined: list[Quarantined]) -> list[types.Call]:
    """The calls that can be transitions, by sequence."""
    usable: list[types.Call] = []
    seen: set[str] = set()
    ordered = sorted(calls, key=lambda call: (call.sequence, call.started_ns))
    lost = undelivered(ordered)
    for call in ordered:
        reason = _defect(call) or lost.get(call.call_id) or ("duplicate" if call.call_id in seen else "")
        if reason:
            quarantined.append(Quarantined("call", call.call_id, reason))
        else:
            seen.add(call.call_id)
            usable.append(call)
    return usable


def _defect(call: types.Call) -> str:
    """Why a call cannot be a transition; "" where it can."""
    if call.finish_reason == "abort":
        return "aborted"
    if call.response_ids.size == 0 or call.prompt_ids.size == 0:
        return "empty"
    if call.prompt_ids.ndim != 1 or call.response_ids.ndim != 1 or call.response_ids.shape != call.rollout_logps.shape:
        return "shapes"
    if not np.isfinite(call.rollout_logps).all():
        return "not_finite"
    return ""


def _rewards(
    rewards: Sequence[types.Reward], known: set[str], quarantined: list[Quarantined]
) -> tuple[dict[str, float], dict[str, dict[str, float]], dict[str, float]]:
    """(reward of each call, its components, reported components of the rollout).

    Rewards of one call add up (a tool and a judge may both speak of it); of the whole rollout the last report of each
    name holds, since it states a total. A call's reward without a value is the sum of its components.
    """
    intermediate: dict[str, float] = {}
    components: dict[str, dict[str, float]] = {}
    reported: dict[str, float] = {}
    for reward in rewards:
        call_id = reward.call_id if reward.call_id in known else call_of_response(reward.call_id)
        values = [*reward.components.values(), *([] if reward.value is None else [reward.value])]
        if not all(math.isfinite(value) for value in values):
            quarantined.append(Quarantined("reward", reward.reward_id, "not_finite"))
        elif not reward.call_id:
            reported.update(reward.components)
            if reward.value is not None:
                reported["reward"] = reward.value
        elif call_id in known:
            value = sum(reward.components.values()) if reward.value is None else reward.value
            intermediate[call_id] = intermediate.get(call_id, 0.0) + value
            parts = components.setdefault(call_id, {})
            for name, part in reward.components.items():
                parts[name] = parts.get(name, 0.0) + part
        else:
            quarantined.append(Quarantined("reward", reward.reward_id, "unknown_call"))
    return intermediate, components, reported
