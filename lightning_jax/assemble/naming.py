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
from lightning_jax.assemble.conventions import SpanFacts, facts_of


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


def agent_names(calls: Sequence[types.Call], spans: Sequence[types.Span], naming: AgentNaming) -> dict[str, str]:
    """The agent's name of each call, by call id."""
    by_span = _names_by_span(calls, spans) if naming.use_spans and spans else {}
    return {
        call.call_id: by_span.get(call.call_id) or _name_by_prompt(call.request, naming) or call.agent_key
        for call in calls
    }


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
            _content_text(message.get("content"))
            for message in messages
            if isinstance(message, dict) and message.get("role") in ("system", "developer")
        ]
        if texts:
            return "\n".join(texts)
    return ""


def _content_text(content: Any) -> str:
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


def _names_by_span(calls: Sequence[types.Call], spans: Sequence[types.Span]) -> dict[str, str]:
    """Names of the calls that spans stand for, spread to the calls of the same agent_key where all agree."""
    facts = {(span.trace_id, span.span_id): facts_of(span) for span in spans}
    parents = {(span.trace_id, span.span_id): (span.trace_id, span.parent_id) for span in spans}
    names: dict[str, str] = {}
    known = {call.call_id for call in calls}
    # A response id is proof; the tool-call ids that AutoGen's spans show instead are the next best.
    for strong in (True, False):
        claims: dict[str, set[str]] = {}
        for identity, fact in facts.items():
            ids = fact.call_ids if strong else fact.tool_call_ids
            own = (ids & known) - names.keys()
            # A span of several calls (a prompt that repeats older tool calls) speaks for none of them.
            if len(own) == 1 and (name := _nearest_agent(identity, facts, parents)):
                claims.setdefault(next(iter(own)), set()).add(name)
        names.update({call_id: next(iter(said)) for call_id, said in claims.items() if len(said) == 1})
    return names | _spread(calls, names)


def _nearest_agent(
    identity: tuple[bytes, bytes],
    facts: Mapping[tuple[bytes, bytes], SpanFacts],
    parents: Mapping[tuple[bytes, bytes], tuple[bytes, bytes]],
) -> str:
    """The agent that a span or its nearest ancestor names. Parents may be missing, or run in a circle."""
    seen: set[tuple[bytes, bytes]] = set()
    while identity in facts and identity not in seen:
        if facts[identity].agent:
            return facts[identity].agent
        seen.add(identity)
        identity = parents[identity]
    return ""


def _spread(calls: Sequence[types.Call], names: Mapping[str, str]) -> dict[str, str]:
    """Names for the calls no span stands for, from calls with the same system prompt and tools."""
    said: dict[str, set[str]] = {}
    for call in calls:
        if call.call_id in names:
            said.setdefault(call.agent_key, set()).add(names[call.call_id])
    return {
        call.call_id: next(iter(said[call.agent_key]))
        for call in calls
        if call.call_id not in names and len(said.get(call.agent_key, ())) == 1
    }
