"""The ids the policy server hands out, found again in whatever a span or a request shows of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lightning_jax.assemble.attributes import json_of
from lightning_jax.ingest.references import RESPONSE_ID, RESPONSE_PREFIXES

_TOOL_CALL_ID = re.compile(r"call_(.+)_\d+")
_MAX_NODES = 20_000  # of one JSON document; a span is no reason to search for ever


def call_of_response(response_id: str) -> str:
    """The call id inside a response id; "" for any other text."""
    for prefix in RESPONSE_PREFIXES:
        if response_id.startswith(prefix):
            return response_id[len(prefix) :]
    return ""


def call_of_tool_call(tool_call_id: str) -> str:
    """The call id inside a tool-call id of ours; "" for any other text."""
    match = _TOOL_CALL_ID.fullmatch(tool_call_id)
    return match[1] if match else ""


def ids_of_output(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """(call ids by response id, call ids by tool-call id) in a span's output."""
    document = json_of(text)
    if document is None:
        # Cut off by an attribute limit, or no JSON at all.
        return frozenset(match[1] for match in RESPONSE_ID.finditer(text)), frozenset()
    responses, tools = set(), set()
    for identity in _id_fields(document):
        if call := call_of_response(identity):
            responses.add(call)
        elif call := call_of_tool_call(identity):
            tools.add(call)
    return frozenset(responses), frozenset(tools)


def _id_fields(document: Any) -> Iterator[str]:
    """The strings under "id" anywhere in a JSON document."""
    stack, visited = [document], 0
    while stack and visited < _MAX_NODES:
        node = stack.pop()
        visited += 1
        if isinstance(node, dict):
            for key in ("id", "call_id"):
                identity = node.get(key)
                if isinstance(identity, str):
                    yield identity
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
