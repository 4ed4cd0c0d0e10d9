"""Which agent spoke: by the system prompt, as configured, and more precisely by spans, where the agent emits them.

A call always has a name: in the worst case its agent_key, which is stable for one system prompt and set of tools.
Names decide what is trained (selection and weights of agents), so where spans are ambiguous they are not followed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_jax import types
from lightning_jax.assemble.joins import Reading, SpanId

MAX_PARENTS = 16  # agents kept above a call; a chain nested deeper says no more


@dataclass(frozen=True, slots=True)
class AgentNaming:
    """Ordered (name, regular expression) pairs; the first that is found in a call's system prompt names its agent.

    ``use_spans`` lets spans that name an agent or graph node overrule the pattern.
    """

    patterns: tuple[tuple[str, re.Pattern[str]], ...] = ()
    use_spans: bool = True

    @classmethod
    def of(cls, patterns: Mapping[str, str], use_spans: bool = True) -> AgentNaming:
        """From a mapping name -> regular expression, in its order. Raises ValueError for one that does not compile."""
        compiled = []
        for name, pattern in patterns.items():
            try:
                compiled.append((name, re.compile(pattern, re.DOTALL)))
            except re.error as error:
                raise ValueError(f"agent {name!r} has the pattern {pattern!r}, which is no regex: {error}") from error
        return cls(tuple(compiled), use_spans)


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who made a call, where in the graph, and below whom."""

    agent: str
    node: str = ""
    parents: tuple[str, ...] = ()  # the nearest first


def speakers(
    calls: Sequence[types.Call], reading: Reading, naming: AgentNaming, afterwards: Reading | None = None
) -> dict[str, Speaker]:
    """The speaker of each call, by call id.

    afterwards: the reading with spans that came too late for training; it names what has no other name.
    """
    by_span = _by_span(reading) if naming.use_spans else {}
    spread = _spread(calls, by_span)
    late = _by_span(afterwards) if naming.use_spans and afterwards is not None else {}
    late_spread = _spread(calls, late)
    found: dict[str, Speaker] = {}
    for call in calls:
        spoken = by_span.get(call.call_id) or spread.get(call.agent_key)
        if spoken is None and (name := _name_by_prompt(call.request, naming)):
            spoken = Speaker(name)
        spoken = spoken or late.get(call.call_id) or late_spread.get(call.agent_key) or Speaker(call.agent_key)
        found[call.call_id] = spoken
    return found


def system_prompt(request: Mapping[str, Any]) -> str:
    """The instructions in a chat, responses or completions request body; "" where there are none."""
    instructions = request.get("instructions")
    if isinstance(instructions, str) and instructions:
        return instructions
    for key in ("messages", "input"):
        messages = request.get(key)
        if not isinstance(messages, list):
            continue
        texts = [
            content_text(message.get("content"))
            for message in messages
            if isinstance(message, dict) and message.get("role") in ("system", "developer")
        ]
        if texts:
            return "\n".join(texts)
    return ""


def content_text(content: Any) -> str:
    """Text of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in parts if isinstance(text, str))


def _name_by_prompt(request: Mapping[str, Any], naming: AgentNaming) -> str:
    if not naming.patterns:
        return ""
    prompt = system_prompt(request)
    return next((name for name, pattern in naming.patterns if pattern.search(prompt)), "")


def _by_span(reading: Reading) -> dict[str, Speaker]:
    """Speakers of the calls that spans stand for, where all spans of a call that name an agent agree."""
    lines: dict[SpanId, tuple[str, ...]] = {}
    found: dict[str, Speaker] = {}
    for call_id, identities in reading.by_call().items():
        named = {line for line in (_agents_above(identity, reading, lines) for identity in identities) if line}
        if len({line[0] for line in named}) == 1:
            line = max(named, key=len)
            nodes = {node for identity in identities if (node := reading.facts[identity].node)}
            node = nodes.pop() if len(nodes) == 1 else ""
            found[call_id] = Speaker(line[0], node if node != line[0] else "", line[1:])
    return found


def _agents_above(start: SpanId, reading: Reading, lines: dict[SpanId, tuple[str, ...]]) -> tuple[str, ...]:
    """The agents that a span and its ancestors name, the nearest first, each once in a row.

    `lines` remembers what was found, so that a deep chain is walked once. Parents may be missing, or run in a circle.
    """
    path: list[SpanId] = []
    on_path: set[SpanId] = set()
    identity = start
    while identity in reading.facts and identity not in lines and identity not in on_path:
        path.append(identity)
        on_path.add(identity)
        identity = (identity[0], reading.spans[identity].parent_id)
    line = lines.get(identity, ())
    for below in reversed(path):
        facts = reading.facts[below]
        name = facts.agent or (facts.node if facts.node not in _PLUMBING else "")
        if name and (not line or line[0] != name):
            # A hand-off has no span around what comes after it: the graph alone says who handed over.
            told = facts.parent if facts.parent not in (*_PLUMBING, "", name, *line[:1]) else ""
            line = (name, *((told,) if told else ()), *line)[: MAX_PARENTS + 1]
        lines[below] = line
    return line


_PLUMBING = ("__start__", "__end__")  # LangGraph's own nodes, which nobody is


def _spread(calls: Sequence[types.Call], named: Mapping[str, Speaker]) -> dict[str, Speaker]:
    """Speakers by agent_key, for the calls no span stands for, where all calls with that key agree."""
    said: dict[str, dict[str, Speaker]] = {}
    for call in calls:
        if call.call_id in named:
            speaker = named[call.call_id]
            said.setdefault(call.agent_key, {})[speaker.agent] = speaker
    return {key: next(iter(names.values())) for key, names in said.items() if len(names) == 1}
