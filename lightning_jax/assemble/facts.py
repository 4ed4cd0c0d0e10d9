"""What one span says, whichever dialect it speaks: the noun between the normalisers and everything that reads spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SpanKind = Literal["llm", "tool", "agent", "http", "other"]


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """Empty fields are what the span does not say."""

    kind: SpanKind = "other"
    call_ids: frozenset[str] = frozenset()  # by response id: proof of the call
    output_ids: frozenset[str] = frozenset()  # by a response id inside the output
    tool_call_ids: frozenset[str] = frozenset()  # call ids found inside tool-call ids, a weaker hint
    content: str = ""  # text the model answered, for spans that show no id at all
    agent: str = ""
    node: str = ""  # graph node
    parent: str = ""  # graph node above, as after a hand-off, where no span is above
    tool: str = ""
    tool_call_id: str = ""
    arguments: str = ""
    result: str = ""
    error: str = ""  # type and message of what went wrong; "" where nothing is said to have
    status_code: int = 0  # HTTP
    url: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def is_llm(self) -> bool:
        """Whether the span stands for an LLM call."""
        return self.kind == "llm"
