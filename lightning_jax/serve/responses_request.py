"""A request to /v1/responses, as the chat request that means the same.

The state that OpenAI keeps between responses is not kept: what refers to it is refused; agents that send their whole
input (the OpenAI Agents SDK, pydantic-ai) never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_jax.serve.chat_request import ChatRequest, parse_body, read_object
from lightning_jax.serve.errors import invalid

_REFUSED = ("previous_response_id", "conversation", "prompt", "background")
LOGPROBS = "message.output_text.logprobs"  # of `include`
# What has its own form here, or a chat's meaning but not here; everything else is read, or refused, as a chat's.
_OWN = (
    "input", "instructions", "text", "tools", "tool_choice", "max_output_tokens", "include", "top_logprobs", "logprobs",
    "messages", "response_format", "max_tokens", "max_completion_tokens", "stream_options", *_REFUSED,
)  # fmt: skip
_IGNORED_ITEMS = ("reasoning",)


def parse_responses(raw: bytes, max_choices: int) -> ChatRequest:
    """Read a request body; ApiError 400 names the parameter."""
    body = read_object(raw)
    for name in _REFUSED:
        if body.get(name):
            why = "responses are not kept; send the whole input"
            raise invalid(f"{name} is not supported: {why}", name, "unsupported_parameter")
    if body.get("n") not in (None, 1) or body.get("n") is True:
        raise invalid(f"n={body['n']!r} is not supported: a response is one answer", "n", "unsupported_parameter")
    text = body.get("text") or {}
    if not isinstance(text, dict):
        raise invalid("text must be an object", "text")
    chat: dict[str, Any] = {
        **{key: value for key, value in body.items() if key not in _OWN},
        "messages": _messages(body),
        "tools": [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.get("tools") or [])],
        "tool_choice": _choice(body.get("tool_choice")),
        "max_tokens": body.get("max_output_tokens"),
        "response_format": text.get("format"),
        "logprobs": bool(body.get("top_logprobs")) or LOGPROBS in (body.get("include") or ()),
        "top_logprobs": body.get("top_logprobs"),
    }
    return parse_body(chat, max_choices, received=body)


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise invalid("input must be a string or a list with at least one item", "input")
    for number, item in enumerate(given):
        _append(messages, item, f"input[{number}]")
    return messages


def _append(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        if messages and messages[-1]["role"] == "assistant":  # one turn: text and calls, or several calls
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind not in _IGNORED_ITEMS:
        raise invalid(f"{where} is of type {kind!r}, which is not supported", where)


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise invalid(f"{where} is {kind!r}; only function tools with a name are served", where)
    return {"type": "function", "function": {k: v for k, v in tool.items() if k not in ("type", "strict")}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice
