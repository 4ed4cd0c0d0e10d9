"""What an attempt's requests and spans show of tool calls, by tool-call id; judged in tools.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_jax import types
from lightning_jax.assemble.identifiers import call_of_tool_call
from lightning_jax.assemble.naming import content_text
from lightning_jax.written_calls import CLOSE, OPEN, calls_in, document

_MARKED = re.compile(rf"{OPEN}\s*(.*?)\s*(?:{CLOSE}|\Z)", re.DOTALL)  # read only where no request repeats them


@dataclass(slots=True)
class Replay:
    """A tool call as later requests repeat it, with its answer (None: none was seen)."""

    tool_call_id: str
    name: str
    arguments: str
    answer: str | None = None


def replays(calls: Sequence[types.Call]) -> dict[str, dict[str, Replay]]:
    """call id → tool-call id → what later requests show. Reads each message once while a conversation only grows."""
    found: dict[str, dict[str, Replay]] = {}
    seen: dict[str, tuple[int, Any]] = {}  # agent_key → (messages read, the last of them)
    for call in calls:
        messages = _messages(call.request)
        start, last = seen.get(call.agent_key, (0, None))
        if not (0 < start <= len(messages) and messages[start - 1] == last):
            start = 0
        for message in messages[start:]:
            _note(message, found)
        if messages:
            seen[call.agent_key] = (len(messages), messages[-1])
    return found


def written(call: types.Call) -> Iterator[tuple[str, str]]:
    """(name, arguments) of the tool calls in a call's own text; of a marked one that is none ("", what is there)."""
    marked = [match[1] for match in _MARKED.finditer(call.text)]
    for text in marked or [call.text]:
        found = calls_in(document(text))
        yield from found or ([("", text)] if marked else [])


def tool_schemas(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Name → JSON schema of the tools a request offers (chat or responses form); None where it offers none."""
    tools = request.get("tools")
    if not isinstance(tools, list):
        return None
    schemas = {}
    for tool in tools:
        body = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(body, dict) and isinstance(body.get("name"), str):
            schemas[body["name"]] = body.get("parameters")
    return schemas


def _messages(request: Mapping[str, Any]) -> list[Any]:
    for key in ("messages", "input"):
        if isinstance(request.get(key), list):
            messages: list[Any] = request[key]
            return messages
    return []


def _note(message: Any, found: dict[str, dict[str, Replay]]) -> None:
    """Take tool calls and answers out of one message, chat or responses form."""
    if not isinstance(message, dict):
        return
    tool_calls = message.get("tool_calls")
    for item in tool_calls if isinstance(tool_calls, list) else ():
        body = item.get("function") if isinstance(item, dict) else None
        if isinstance(body, dict):
            _called(item.get("id"), body, found)
    kind = message.get("type")
    if kind == "function_call":
        _called(message.get("call_id"), message, found)
    elif kind == "function_call_output":
        _answered(message.get("call_id"), message.get("output"), found)
    elif message.get("role") == "tool":
        _answered(message.get("tool_call_id"), message.get("content"), found)


def _called(identity: Any, body: Mapping[str, Any], found: dict[str, dict[str, Replay]]) -> None:
    if isinstance(identity, str) and (call_id := call_of_tool_call(identity)):
        name, arguments = body.get("name"), body.get("arguments")
        replay = Replay(
            identity, name if isinstance(name, str) else "", arguments if isinstance(arguments, str) else ""
        )
        found.setdefault(call_id, {}).setdefault(identity, replay)


def _answered(identity: Any, content: Any, found: dict[str, dict[str, Replay]]) -> None:
    replay = found.get(call_of_tool_call(identity), {}).get(identity) if isinstance(identity, str) else None
    if replay is not None and replay.answer is None:
        replay.answer = content_text(content)
