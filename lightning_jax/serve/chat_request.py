"""A chat completion request: JSON from outside → a frozen record, or a refusal that names the parameter.

What would change the answer's meaning and cannot be honoured is refused; what is harmless is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_jax.serve.errors import invalid
from lightning_jax.serve.unsupported import check_supported

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20  # as OpenAI has it


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The part of the body that the server acts on."""

    body: Mapping[str, Any]  # as received
    messages: tuple[Mapping[str, Any], ...]  # content always a string; role developer is system
    offered: tuple[Mapping[str, Any], ...]  # tools as the request lists them: who speaks is told by these
    tools: tuple[Mapping[str, Any], ...]  # those that may be called: none where tool_choice forbids it
    tool_choice: str  # "auto", "required", or the name of the tool that must be called behind "="
    parallel_tool_calls: bool
    schema: Mapping[str, Any] | None  # JSON schema that the answer must fit
    model: str
    max_tokens: int | None
    temperature: float
    top_p: float
    n: int
    stop: tuple[str, ...]
    seed: int | None
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: int  # alternatives told at each place
    prompt: str | tuple[int, ...] | None  # in place of messages, past the chat template
    token_ids: bool  # also tell prompt_token_ids, token_ids and policy_version


def parse_chat(raw: bytes, max_choices: int) -> ChatRequest:
    """Read a request body; ApiError 400 names the parameter."""
    return parse_body(read_object(raw), max_choices)


def parse_body(
    body: Mapping[str, Any],
    max_choices: int,
    *,
    received: Mapping[str, Any] | None = None,
    prompt: str | tuple[int, ...] | None = None,
) -> ChatRequest:
    """A chat body, or what another endpoint's body means as one. received: that body, kept in its place."""
    check_supported(body)
    stream_options = body.get("stream_options") or {}
    if not isinstance(stream_options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    top_logprobs = _integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    if top_logprobs and not body.get("logprobs"):
        raise invalid(f"top_logprobs={top_logprobs} needs logprobs=true", "top_logprobs")
    offered, tools, choice = read_tools(body)
    limits = [_integer(body, name, 1, 2**31 - 1) for name in ("max_completion_tokens", "max_tokens")]
    temperature, top_p = _number(body, "temperature", 0.0, 2.0), _number(body, "top_p", 0.0, 1.0)
    if top_p == 0.0:  # the nucleus of one token
        top_p = 1e-6
    return ChatRequest(
        body=body if received is None else received,
        messages=_messages(body.get("messages")),
        offered=offered,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.get("parallel_tool_calls") is not False,
        schema=read_schema(body.get("response_format"), "response_format"),
        model=str(body.get("model") or ""),
        max_tokens=limits[0] if limits[0] is not None else limits[1],
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        n=_integer(body, "n", 1, max_choices) or 1,
        stop=_stops(body.get("stop")),
        seed=_integer(body, "seed", -(2**63), 2**64 - 1),
        stream=_boolean(body, "stream"),
        include_usage=_boolean(stream_options, "include_usage"),
        logprobs=_boolean(body, "logprobs"),
        top_logprobs=top_logprobs,
        prompt=prompt,
        token_ids=_boolean(body, "return_token_ids"),
    )


def read_object(raw: bytes) -> dict[str, Any]:
    """A JSON object; ApiError 400 for anything else."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise invalid(f"the body is a JSON {type(body).__name__}; an object is needed")
    return body


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise invalid("messages must be a list with at least one message", "messages")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(value))


def _message(message: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise invalid(f"{where} needs a role of {', '.join(ROLES)}", f"{where}.role")
    out = {**message, "content": _text(message.get("content"), f"{where}.content")}
    if out["role"] == "developer":  # what newer OpenAI models call it; few templates know the word
        out["role"] = "system"
    calls = message.get("tool_calls")
    if calls is None:
        out.pop("tool_calls", None)
    elif not isinstance(calls, list) or not all(_has_name(call) for call in calls):
        raise invalid(f"{where}.tool_calls must be a list of objects with function.name", f"{where}.tool_calls")
    return out


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where} must be a string or a list of parts", where)
    texts = []
    for part in content:
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise invalid(f"{where} has a part of type {kind!r}; only text is understood", where)
        texts.append(text)
    return "".join(texts)


Tools = tuple[Mapping[str, Any], ...]


def read_tools(body: Mapping[str, Any]) -> tuple[Tools, Tools, str]:
    """The tools offered, those that may be called, and how they are to be chosen (see `ChatRequest.tool_choice`)."""
    tools = _tools(body.get("tools") or [])
    choice = body.get("tool_choice")
    if choice in (None, "auto"):
        return tools, tools, "auto"
    if choice == "none":
        return tools, (), "auto"
    if not tools:
        raise invalid(f"tool_choice={json.dumps(choice)[:200]} needs tools", "tool_choice")
    if choice == "required":
        return tools, tools, "required"
    if not _has_name(choice):
        raise invalid(
            f"tool_choice={json.dumps(choice)[:200]} must be 'none', 'auto', 'required' or "
            '{"type": "function", "function": {"name": ...}}',
            "tool_choice",
        )
    name = choice["function"]["name"]
    if name not in (known := [tool["function"]["name"] for tool in tools]):
        raise invalid(f"tool_choice names {name!r}; the tools are {', '.join(known)}", "tool_choice")
    return tools, tools, f"={name}"


def read_schema(value: Any, where: str) -> Mapping[str, Any] | None:
    """The JSON schema that a response format asks for; None for plain text."""
    if value is None or value == {"type": "text"}:
        return None
    if isinstance(value, dict) and value.get("type") == "json_object":
        return {"type": "object"}
    if isinstance(value, dict) and value.get("type") == "json_schema":
        named = value.get("json_schema", value)
        schema = named.get("schema") if isinstance(named, dict) else None
        if isinstance(schema, dict):
            return schema
    raise invalid(
        f"{where}={json.dumps(value)[:200]} must be of type text, json_object or json_schema with a schema", where
    )


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(_has_name(tool) for tool in value):
        raise invalid('tools must be a list of {"type": "function", "function": {"name": ...}}', "tools")
    return tuple(value)


def _has_name(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("function"), dict)
        and isinstance(value["function"].get("name"), str)
    )


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise invalid(f"stop must be a string or a list of up to {MAX_STOPS} non-empty strings", "stop")
    return tuple(stops)


def _integer(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(f"{name}={value!r} must be an integer from {low} to {high}", name)
    return value


def _number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise invalid(f"{name}={value!r} must be a number from {low} to {high}", name)
    return float(value)


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{name}={value!r} must be true or false", name)
    return bool(value)
