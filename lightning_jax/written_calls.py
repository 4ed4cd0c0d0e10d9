"""Tool calls as models write them into text: the marks around them, and what counts as one.

Known to the policy server, which turns them into OpenAI's JSON, and to the assembler, which reads those that no request
repeats: what one of them takes for a call is one for the other.
"""

from __future__ import annotations

import json
import re
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
_FENCE = re.compile(r"\A```(?:json)?\s*(.*?)\s*(?:```)?\Z", re.DOTALL)


def document(text: str) -> Any:
    """The JSON that a text is, bare, tagged or fenced; None where it is something else."""
    text = text.strip().removeprefix(PYTHON_TAG).strip()
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None


def calls_in(found: Any) -> list[tuple[str, str]]:
    """(name, arguments as JSON text) of every call of a document, one or a list; [] where any of it is no call."""
    calls = [_call(item) for item in (found if isinstance(found, list) else [found])]
    return [call for call in calls if call is not None] if all(call is not None for call in calls) else []


def _call(item: Any) -> tuple[str, str] | None:
    if not isinstance(item, dict):
        return None
    body = item["function"] if isinstance(item.get("function"), dict) else item
    key = "arguments" if "arguments" in body else "parameters"
    name, arguments = body.get("name"), body.get(key)
    if not isinstance(name, str) or key not in body or not isinstance(arguments, dict | str):
        return None
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
