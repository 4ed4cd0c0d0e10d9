"""The normalisers: attributes of one dialect to SpanFacts.

Sources: OpenTelemetry's GenAI conventions (gen_ai.*, with the names of before 1.37 that are still sent), OpenInference
(openinference.span.kind, llm.*, tool.*), OpenLLMetry/Traceloop (gen_ai.* and traceloop.*), pydantic-ai's own additions,
and HTTP client spans, old (http.*) and new (url.full, http.response.*). All tested on what real frameworks sent.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lightning_jax.assemble.attributes import Attributes, Decoded, json_of, number_of, text_of
from lightning_jax.assemble.facts import SpanFacts, SpanKind
from lightning_jax.assemble.identifiers import call_of_response, call_of_tool_call, ids_of_output

_LLM_OPERATIONS = ("chat", "text_completion", "generate_content")
_KINDS: dict[str, SpanKind] = {"LLM": "llm", "TOOL": "tool", "AGENT": "agent"}


def gen_ai(span: Decoded) -> SpanFacts:
    """OpenTelemetry GenAI, new and old names."""
    at = span.attributes
    call = call_of_response(text_of(at, "gen_ai.response.id"))
    operation = text_of(at, "gen_ai.operation.name")
    tool_call_id = text_of(at, "gen_ai.tool.call.id")
    kind: SpanKind = "other"
    if operation == "execute_tool" or text_of(at, "gen_ai.tool.name"):
        kind = "tool"
    elif call or operation in _LLM_OPERATIONS:
        kind = "llm"
    elif operation in ("invoke_agent", "create_agent"):
        kind = "agent"
    content, tools = _gen_ai_output(span) if kind == "llm" else ("", frozenset[str]())
    return SpanFacts(
        kind=kind,
        call_ids=frozenset({call} if call else ()),
        tool_call_ids=tools,
        content=content,
        agent=text_of(at, "gen_ai.agent.name"),
        tool=text_of(at, "gen_ai.tool.name"),
        tool_call_id=tool_call_id,
        arguments=text_of(at, "gen_ai.tool.call.arguments"),
        result=text_of(at, "gen_ai.tool.call.result"),
        error=text_of(at, "error.type") and _error(span, text_of(at, "error.type")),
        status_code=number_of(at, "http.response.status_code"),
        url=text_of(at, "gen_ai.openai.api_base"),
        prompt_tokens=number_of(at, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        completion_tokens=number_of(at, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    )


def traceloop(span: Decoded) -> SpanFacts:
    """OpenLLMetry: GenAI, and Traceloop's workflow, task, agent and tool spans around it."""
    at = span.attributes
    kind = {"tool": "tool", "agent": "agent"}.get(text_of(at, "traceloop.span.kind"), "other")
    entity = text_of(at, "traceloop.entity.name")
    own = SpanFacts(
        kind=kind,  # type: ignore[arg-type]
        agent=entity if kind == "agent" else "",
        node=text_of(at, "traceloop.association.properties.langgraph_node"),
        tool=entity if kind == "tool" else "",
        arguments=text_of(at, "traceloop.entity.input") if kind == "tool" else "",
        result=text_of(at, "traceloop.entity.output") if kind == "tool" else "",
    )
    return union(gen_ai(span), own)


def pydantic_ai(span: Decoded) -> SpanFacts:
    """pydantic-ai's own spans: GenAI, and the names it had before those were settled."""
    at = span.attributes
    tool = text_of(at, "gen_ai.tool.name")
    own = SpanFacts(
        kind="agent" if not tool and text_of(at, "agent_name") else "other",
        agent=text_of(at, "agent_name"),
        arguments=text_of(at, "tool_arguments"),
        result=text_of(at, "tool_response"),
    )
    return union(gen_ai(span), own)


def open_inference(span: Decoded) -> SpanFacts:
    """OpenInference: agent.name or graph.node.id, LangChain's metadata, and ids only inside output.value."""
    at = span.attributes
    kind = _KINDS.get(text_of(at, "openinference.span.kind"), "other")
    agent, node = _langchain_names(at)
    agent = text_of(at, "agent.name") or agent or (text_of(at, "graph.node.id") if kind == "agent" else "")
    output = text_of(at, "output.value")
    # A chain's output repeats the ids of every call below it; only the LLM's own span speaks for a call.
    responses, tools = ids_of_output(output) if kind == "llm" else (frozenset[str](), frozenset[str]())
    is_tool = kind == "tool"
    return SpanFacts(
        kind=kind,
        output_ids=responses,
        tool_call_ids=tools,
        content=_open_inference_content(at, output) if kind == "llm" else "",
        agent=agent,
        node=text_of(at, "graph.node.id") or node,
        parent=text_of(at, "graph.node.parent_id"),
        tool=text_of(at, "tool.name") if is_tool else "",
        tool_call_id=text_of(at, "tool_call.id", "tool.id") if is_tool else "",
        arguments=text_of(at, "input.value") if is_tool else "",
        result=output if is_tool else "",
        prompt_tokens=number_of(at, "llm.token_count.prompt"),
        completion_tokens=number_of(at, "llm.token_count.completion"),
    )


def http(span: Decoded) -> SpanFacts:
    """A client's HTTP request: to the policy server, or of a tool to the world."""
    at = span.attributes
    url = text_of(at, "url.full", "http.url")
    code = number_of(at, "http.response.status_code", "http.status_code")
    error = text_of(at, "error.type")
    return SpanFacts(
        kind="http" if url or code else "other",
        url=url,
        status_code=code,
        error=_error(span, error) if error else "",
    )


def union(*facts: SpanFacts) -> SpanFacts:
    """What several readings of one span say together: the first that says something is followed, field by field."""
    merged: dict[str, Any] = {}
    for item in fields(SpanFacts):
        values = [getattr(reading, item.name) for reading in facts]
        if item.name == "kind":
            merged[item.name] = next((value for value in values if value != "other"), "other")
        elif isinstance(values[0], frozenset):
            merged[item.name] = values[0].union(*values[1:])
        else:
            merged[item.name] = next((value for value in values if value), values[0])
    return SpanFacts(**merged)


def _error(span: Decoded, kind: str) -> str:
    message = span.exception[1] or span.message
    return f"{kind}: {message}"[:500] if message else kind


def _langchain_names(at: Attributes) -> tuple[str, str]:
    """(agent, node) in LangChain's metadata. Every node of create_agent is called "model" or "tools"."""
    metadata = json_of(text_of(at, "metadata"))
    if not isinstance(metadata, dict):
        return "", ""
    agent, node = (metadata.get(key) for key in ("lc_agent_name", "langgraph_node"))
    return agent if isinstance(agent, str) else "", node if isinstance(node, str) else ""


def _gen_ai_output(span: Decoded) -> tuple[str, frozenset[str]]:
    """(text, call ids by tool-call ids) of what the model answered, new names and old."""
    at = span.attributes
    event = span.events.get("gen_ai.client.inference.operation.details", {})
    document = json_of(text_of(at, "gen_ai.output.messages") or text_of(event, "gen_ai.output.messages"))
    texts, tools = [text_of(at, "gen_ai.completion.0.content")], set()
    for key, value in at.items():
        if key.startswith("gen_ai.completion.0.tool_calls.") and key.endswith(".id") and isinstance(value, str):
            tools.add(call_of_tool_call(value))
    for message in document if isinstance(document, list) else []:
        parts = message.get("parts") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, dict) and isinstance(part.get("content"), str):
                texts.append(part["content"])
            if isinstance(part, dict) and isinstance(part.get("id"), str):
                tools.add(call_of_tool_call(part["id"]))
    return "".join(texts), frozenset(filter(None, tools))


def _open_inference_content(at: Attributes, output: str) -> str:
    flat = text_of(at, "llm.output_messages.0.message.content")
    if flat:
        return flat
    document = json_of(output)
    content = document.get("content") if isinstance(document, dict) else None
    return content if isinstance(content, str) else ""
