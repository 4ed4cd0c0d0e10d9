"""What a span says about an LLM call, in whichever dialect its instrumentation speaks.

Three families occur in the field, told apart by instrumentation scope: OpenTelemetry's own GenAI conventions (also
OpenLLMetry, pydantic-ai, AutoGen's core), OpenInference, and whatever else: that one is read leniently with both.
Invariant: any bytes give facts, never an exception; a span that says nothing gives empty facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1 import trace_pb2

from lightning_jax import types

_RESPONSE_PREFIXES = ("chatcmpl-", "resp_", "cmpl-")
_RESPONSE_ID = re.compile(r"\b(?:chatcmpl-|resp_|cmpl-)([A-Za-z0-9_.:-]+)")
_TOOL_CALL_ID = re.compile(r"call_(.+)_\d+")
_MAX_NODES = 20_000  # of one JSON document; a span is no reason to search for ever


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """What one span says: the calls it may stand for, and the agent or graph node it names ("" where none)."""

    call_ids: frozenset[str] = frozenset()  # by response id
    tool_call_ids: frozenset[str] = frozenset()  # call ids found inside tool-call ids, a weaker hint
    agent: str = ""
    is_llm: bool = False


NO_FACTS = SpanFacts()
Attributes = Mapping[str, Any]


def facts_of(span: types.Span) -> SpanFacts:
    """Read a span by the conventions of its scope."""
    try:
        attributes = _attributes(trace_pb2.Span.FromString(span.body))
    except (DecodeError, UnicodeDecodeError):
        return NO_FACTS
    return _reader(span.scope)(attributes)


def _reader(scope: str) -> Callable[[Attributes], SpanFacts]:
    if scope.startswith("openinference."):
        return open_inference
    if scope.startswith(("opentelemetry.", "autogen", "pydantic-ai")):
        return gen_ai
    return any_dialect


def gen_ai(attributes: Attributes) -> SpanFacts:
    """OpenTelemetry GenAI: gen_ai.response.id, gen_ai.agent.name; OpenLLMetry adds the LangGraph node."""
    response_id = _text(attributes, "gen_ai.response.id")
    call_id = _call_id(response_id)
    agent = _text(attributes, "gen_ai.agent.name") or _text(
        attributes, "traceloop.association.properties.langgraph_node"
    )
    operation = _text(attributes, "gen_ai.operation.name")
    return SpanFacts(
        call_ids=frozenset({call_id} if call_id else ()),
        agent=agent,
        is_llm=bool(call_id) or operation in ("chat", "text_completion", "generate_content"),
    )


def open_inference(attributes: Attributes) -> SpanFacts:
    """OpenInference: agent.name or graph.node.id, LangChain's metadata, and ids only inside output.value."""
    agent = _text(attributes, "agent.name") or _text(attributes, "graph.node.id") or _node_of_metadata(attributes)
    if _text(attributes, "openinference.span.kind") != "LLM":
        # A chain's output repeats the ids of every call below it; only the LLM's own span speaks for a call.
        return SpanFacts(agent=agent)
    call_ids, tool_call_ids = _ids_of_output(_text(attributes, "output.value"))
    return SpanFacts(call_ids, tool_call_ids, agent, is_llm=True)


def any_dialect(attributes: Attributes) -> SpanFacts:
    """An unknown instrumentation: whatever either family can read."""
    ours, theirs = gen_ai(attributes), open_inference(attributes)
    return SpanFacts(
        call_ids=ours.call_ids | theirs.call_ids,
        tool_call_ids=theirs.tool_call_ids,
        agent=ours.agent or theirs.agent,
        is_llm=ours.is_llm or theirs.is_llm,
    )


def _attributes(span: trace_pb2.Span) -> dict[str, Any]:
    return {item.key: item.value.string_value for item in span.attributes if item.value.HasField("string_value")}


def _text(attributes: Attributes, key: str) -> str:
    value = attributes.get(key, "")
    return value if isinstance(value, str) else ""


def _call_id(response_id: str) -> str:
    """The call id inside a response id; "" for any other text."""
    for prefix in _RESPONSE_PREFIXES:
        if response_id.startswith(prefix):
            return response_id[len(prefix) :]
    return ""


def _node_of_metadata(attributes: Attributes) -> str:
    """LangChain's own name of an agent, else the LangGraph node. Every node of create_agent is called "model"."""
    metadata = _json(_text(attributes, "metadata"))
    if not isinstance(metadata, dict):
        return ""
    for key in ("lc_agent_name", "langgraph_node"):
        if isinstance(metadata.get(key), str) and metadata[key]:
            return str(metadata[key])
    return ""


def _ids_of_output(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """(call ids by response id, call ids by tool-call id) in an output.value."""
    document = _json(text)
    if document is None:
        # Cut off by an attribute limit, or no JSON at all.
        return frozenset(match[1] for match in _RESPONSE_ID.finditer(text)), frozenset()
    ids = list(_id_fields(document))
    tools = (_TOOL_CALL_ID.fullmatch(identity) for identity in ids)
    return (
        frozenset(filter(None, map(_call_id, ids))),
        frozenset(match[1] for match in tools if match),
    )


def _id_fields(document: Any) -> Iterator[str]:
    """The strings under "id" anywhere in a JSON document."""
    stack, visited = [document], 0
    while stack and visited < _MAX_NODES:
        node = stack.pop()
        visited += 1
        if isinstance(node, dict):
            identity = node.get("id")
            if isinstance(identity, str):
                yield identity
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _json(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
