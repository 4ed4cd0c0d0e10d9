"""What a span shows of the attempt it belongs to: ids that the policy server handed out, and an attempt's URL.

Looking at attributes one by one is what costs most of all that a receiver does, so a span whose bytes hold none of the
server's marks is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lightning_jax.ingest.references import RESPONSE_ID, RESPONSE_PREFIXES, TOOL_CALL_ID

_URL_ATTRIBUTES = frozenset({"http.url", "url.full", "gen_ai.openai.api_base"})
_OUTPUT_ATTRIBUTES = frozenset({"output.value", "gen_ai.output.messages", "llm.output_messages"})
_TOOL_ID_ATTRIBUTE = re.compile(r"tool.*\.id$")  # gen_ai.tool.call.id, ...tool_calls.0.id, ...tool_call.id
_MARKS = (*(prefix.encode() for prefix in RESPONSE_PREFIXES), b"call_", b"/rollout/")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Ids of calls as a span shows them, from the strongest rung to the weakest, and URLs. Empty: it shows none."""

    response_ids: frozenset[str] = frozenset()  # the call's own response id
    output_ids: frozenset[str] = frozenset()  # response ids inside an output
    tool_call_ids: frozenset[str] = frozenset()  # calls named by tool-call ids
    urls: tuple[str, ...] = ()

    @property
    def rungs(self) -> tuple[frozenset[str], ...]:
        """Call ids in the order in which they count."""
        return self.response_ids, self.output_ids, self.tool_call_ids


def evidence_of(span: Any, body: bytes) -> Evidence | None:
    """What an OTLP span (protobuf, and the same as bytes) shows; None where it shows nothing."""
    if not any(mark in body for mark in _MARKS):
        return None
    responses: set[str] = set()
    outputs: set[str] = set()
    tools: set[str] = set()
    urls: list[str] = []
    for key, text in _texts(span):
        if key == "gen_ai.response.id":
            responses.update(match[1] for match in RESPONSE_ID.finditer(text))
        elif key in _URL_ATTRIBUTES:
            urls.append(text)
        elif key in _OUTPUT_ATTRIBUTES:
            # A model can write anything, but only ids of stored calls count, and those it never sees.
            outputs.update(match[1] for match in RESPONSE_ID.finditer(text))
            tools.update(match[1] for match in TOOL_CALL_ID.finditer(text))
        elif _TOOL_ID_ATTRIBUTE.search(key):
            tools.update(match[1] for match in TOOL_CALL_ID.finditer(text))
    if not (responses or outputs or tools or urls):
        return None
    return Evidence(frozenset(responses), frozenset(outputs), frozenset(tools), tuple(urls))


def _texts(span: Any) -> Iterator[tuple[str, str]]:
    """The text attributes of a span and of its events: new GenAI conventions put a model's output into an event."""
    for attributes in (span.attributes, *(event.attributes for event in span.events)):
        for item in attributes:
            if text := item.value.string_value:
                yield item.key, text
