"""Tool calls between OpenAI's JSON and what models write: reading them out of text as it comes, and forcing them.

Forms: "hermes" (Hermes, Qwen: <tool_call>{"name", "arguments"}</tool_call>), "llama3" ({"name", "parameters"} as the
whole answer), "json" ({"name", "arguments"} as the whole answer). In every form an answer that is wholly such JSON and
names a tool that was offered is a call, too. What cannot be read as a call stays text, where the caller sees it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_jax.serve.grammar import literal, schema_rule
from lightning_jax.tool_verdicts import judged_call
from lightning_jax.types import IssuedToolCall
from lightning_jax.written_calls import CLOSE, OPEN, PYTHON_TAG, calls_in, document

ToolForm = Literal["hermes", "llama3", "json"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as clients get it."""

    id: str  # "" of a marked one that could not be read: clients get its text
    name: str
    arguments: str  # JSON text, or whatever the model wrote in its place


def form_of(template: str | None) -> ToolForm:
    """The form that a chat template teaches."""
    text = template or ""
    if OPEN in text:
        return "hermes"
    return "llama3" if "python_tag" in text or '"parameters": ' in text else "json"


def for_template(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as templates expect it: arguments of tool calls as objects, not as JSON in a string."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [{**call, "function": _parsed(call["function"])} for call in calls]}


def _parsed(function: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):  # the model's own slip, shown to it as it was
            return function
    return {**function, "arguments": arguments if arguments is not None else {}}


def forced_call(form: ToolForm, tools: Sequence[Mapping[str, Any]], *, rule: str = "start") -> str:
    """A grammar (Lark) of exactly one call of one of the tools."""
    before, after = (f"{OPEN}\n", f"\n{CLOSE}") if form == "hermes" else ("", "")
    key = "parameters" if form == "llama3" else "arguments"
    rules, names = [], []
    for number, tool in enumerate(tools):
        function = tool["function"]
        head = f'{before}{{"name": {json.dumps(function["name"])}, "{key}": '
        schema = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
        names.append(f"{rule}_call{number}")
        rules.append(f"{names[-1]}: {literal(head)} {rule}_args{number} {literal('}' + after)}")
        rules.append(f"{rule}_args{number}: {schema_rule(schema)}")
    return "\n".join([f"{rule}: {' | '.join(names)}", *rules])


class ToolReader:
    """Splits the text of one response into content and calls, piece by piece."""

    def __init__(self, form: ToolForm, names: Sequence[str], call_id: str, *, parallel: bool = True) -> None:
        self._form = form
        self._names = frozenset(names)
        self._call_id = call_id
        self._parallel = parallel
        self._rest = ""  # not yet given out
        self._started = False  # some content or a call was given out
        self._inside = False  # of a tool_call block
        self.calls: list[ToolCall] = []
        self.attempted: list[ToolCall] = []  # these, and among them those that could not be read

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Content and calls that no later text can change."""
        self._rest += text
        known = len(self.calls)
        content = self._blocks() if not self._may_be_all_json() else ""
        self._started = self._started or bool(content) or bool(self.calls)
        return content, self.calls[known:]

    def finish(self, text: str) -> tuple[str, list[ToolCall]]:
        """The last text, and everything held back."""
        known = len(self.calls)
        content, _ = self.feed(text)
        rest, self._rest = self._rest, ""
        if self._inside:  # the end of the block never came
            content += "" if self._take(document(rest)) else OPEN + self._unread(rest)
        elif not self._started and self._take(document(rest), only_offered=self._form != "llama3"):
            pass
        elif not (self.calls and rest.isspace()):
            content += rest
        return content, self.calls[known:]

    def _may_be_all_json(self) -> bool:
        if self._started or self._inside:
            return False
        start = self._rest.lstrip()
        return start.startswith(("{", "[", "`", PYTHON_TAG)) or PYTHON_TAG.startswith(start)

    def _blocks(self) -> str:
        """Content outside of blocks; calls inside are noted on the way."""
        content = ""
        while True:
            mark = CLOSE if self._inside else OPEN
            at = self._rest.find(mark)
            if at < 0:
                break
            piece, self._rest = self._rest[:at], self._rest[at + len(mark) :]
            if self._inside:
                content += "" if self._take(document(piece)) else OPEN + self._unread(piece) + CLOSE
            else:
                content += piece.rstrip()
            self._inside = not self._inside
        if not self._inside:
            free = self._rest[: len(self._rest) - _held(self._rest)]
            if not (self.calls and free.isspace()):
                content += free
            self._rest = self._rest[len(free) :]
        return content

    def _take(self, written: Any, *, only_offered: bool = False) -> bool:
        """Note the calls of a document; False where it is something else."""
        calls = calls_in(written)
        if not calls or (only_offered and not {n for n, _ in calls} <= self._names):
            return False
        for name, arguments in calls if self._parallel else calls[: max(0, 1 - len(self.calls))]:
            self.calls.append(ToolCall(f"call_{self._call_id}_{len(self.calls)}", name, arguments))
            self.attempted.append(self.calls[-1])
        return True

    def _unread(self, text: str) -> str:
        """The same, noted as a call that nobody could read."""
        self.attempted.append(ToolCall("", "", text.strip()))
        return text


def issued(reader: ToolReader | None, tools: Sequence[Mapping[str, Any]]) -> tuple[IssuedToolCall, ...]:
    """What the record keeps of a response's tool calls, each judged by the tools that were offered."""
    if reader is None or not reader.attempted:
        return ()
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    return tuple(
        IssuedToolCall(call.id, call.name, call.arguments, judged_call(call.name, call.arguments, schemas)[0])
        for call in reader.attempted
    )


def _held(text: str) -> int:
    """Length of the end of text that may yet belong to a block: blanks and the beginning of its mark."""
    for size in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-size:]):
            return size + len(text[:-size]) - len(text[:-size].rstrip())
    return len(text) - len(text.rstrip())
