"""What an attempt's requests and spans show of tool calls, by tool-call id; judged in tools.py."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_jax import types
from lightning_jax.assemble.identifiers import call_of_tool_call
from lightning_jax.assemble.naming import content_text
from lightning_jax.written_calls import CLOSE, OPEN, calls_in, document

_SHOWN_CALLS, _SHOWN_ANSWER, _SHOWN_ERROR = "Calling tools:", "Observation:", "Error:"  # smolagents' words
_SHOWN_ID = re.compile(r"""['"]id['"]: ?['"](call_[^'"]+)['"]""")
_MAX_SHOWN = 100_000  # characters of a text that are searched for calls
_MARKED = re.compile(rf"{OPEN}\s*(.*?)\s*(?:{CLOSE}|\Z)", re.DOTALL)  # read only where no request repeats them


@dataclass(slots=True)
class Replay:
    """A tool call with what later requests show of it."""

    tool_call_id: str
    name: str  # of these two what the server handed out, where it is recorded; an agent may repeat them mended
    arguments: str
    answer: str | None = None  # None: none was seen
    repeated: bool = False  # a later request shows the call itself
    verdict: types.ToolVerdict = "unanswered"  # by the server, before any answer


def replays(calls: Sequence[types.Call]) -> dict[str, dict[str, Replay]]:
    """call id → tool-call id → what is known. Reads each message once while a conversation only grows."""
    found: dict[str, dict[str, Replay]] = {}
    for call in calls:
        for one in call.tool_calls or ():
            if one.tool_call_id:
                replay = Replay(one.tool_call_id, one.name, one.arguments, verdict=one.verdict)
                found.setdefault(call.call_id, {})[one.tool_call_id] = replay
    seen: dict[str, tuple[int, Any, list[str]]] = {}  # agent_key → (messages read, the last of them, calls in its text)
    for call in calls:
        messages = messages_of(call.request)
        start, last, shown = seen.get(call.agent_key, (0, None, []))
        if not (0 < start <= len(messages) and messages[start - 1] == last):
            start, shown = 0, []
        for message in messages[start:]:
            _note(message, found)
            shown = _note_text(message, found, shown)
        if messages:
            seen[call.agent_key] = (len(messages), messages[-1], shown)
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


def messages_of(request: Mapping[str, Any]) -> list[Any]:
    """The conversation in a request, chat or responses form; [] where it has none."""
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


def _note_text(message: Any, found: dict[str, dict[str, Replay]], shown: list[str]) -> list[str]:
    """Take tool calls and answers out of a message that shows them as text; returns the calls that wait for an answer.

    smolagents repeats a turn's calls as "Calling tools:" and a list, then its answers together as "Observation:", or
    the first failure as "Error:".
    """
    if not isinstance(message, dict) or message.get("role") not in ("assistant", "user", "tool"):
        return shown
    text = content_text(message.get("content"))[:_MAX_SHOWN]
    if message["role"] == "assistant":
        _, mark, listed = text.rpartition(_SHOWN_CALLS)
        shown = _SHOWN_ID.findall(listed) if mark else []
        known = {identity: found.get(call_of_tool_call(identity), {}).get(identity) for identity in shown}
        for replay in known.values():
            if replay is not None:
                replay.repeated = True
        for identity, body in _listed(listed) if mark and None in known.values() else ():
            _called(identity, body, found)
        return shown
    starts = [at for mark in (_SHOWN_ANSWER, _SHOWN_ERROR) if (at := _line_start(text, mark)) >= 0]
    if not shown or not starts:
        return shown
    answer = text[min(starts) :].removeprefix(_SHOWN_ANSWER).strip()
    for identity in shown:
        _answered(identity, answer, found)
    return []


def _listed(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, name and arguments) of the calls in a list as Python shows it; none where it is no such list."""
    try:
        items = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return
    for item in items if isinstance(items, list) else ():
        body = item.get("function") if isinstance(item, dict) else None
        if isinstance(body, dict) and isinstance(item.get("id"), str):
            arguments = body.get("arguments")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
            yield item["id"], {**body, "arguments": written}


def _line_start(text: str, mark: str) -> int:
    """Where a line begins with `mark`; -1: nowhere."""
    return 0 if text.startswith(mark) else text.find("\n" + mark) + 1 or -1


def _called(identity: Any, body: Mapping[str, Any], found: dict[str, dict[str, Replay]]) -> None:
    if isinstance(identity, str) and (call_id := call_of_tool_call(identity)):
        name, arguments = body.get("name"), body.get("arguments")
        replay = Replay(
            identity, name if isinstance(name, str) else "", arguments if isinstance(arguments, str) else ""
        )
        found.setdefault(call_id, {}).setdefault(identity, replay).repeated = True


def _answered(identity: Any, content: Any, found: dict[str, dict[str, Replay]]) -> None:
    replay = found.get(call_of_tool_call(identity), {}).get(identity) if isinstance(identity, str) else None
    if replay is not None and replay.answer is None:
        replay.answer = content_text(content)
