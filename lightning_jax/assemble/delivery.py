"""Which calls an agent never got: the server ended, or the agent left, between the record and the answer's last byte.

A server that ends by force may have delivered an answer whose mark was not written yet. So a call that a later request
shows counts as delivered, whatever its mark says.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_jax import types
from lightning_jax.assemble.identifiers import call_of_tool_call
from lightning_jax.assemble.naming import content_text
from lightning_jax.assemble.tool_evidence import messages_of


def undelivered(calls: Sequence[types.Call]) -> dict[str, str]:
    """call id → "superseded" or "undelivered", of the calls that no agent acted on. calls: in the agent's order."""
    found: dict[str, str] = {}
    for number, call in enumerate(calls):
        if call.superseded_by:
            found[call.call_id] = "superseded"
        elif call.delivered_ns < 0 and not _shown(call, calls, number):
            found[call.call_id] = "undelivered"
    return found


def _shown(call: types.Call, calls: Sequence[types.Call], number: int) -> bool:
    """Whether a later request repeats the call's text or names one of its tool calls."""
    # The same request may have been answered twice with the same words: then words prove nothing.
    alone = sum(other.request_key == call.request_key for other in calls) == 1
    text = call.text.strip() if alone else ""
    for later in calls[number + 1 :]:
        for message in messages_of(later.request):
            if isinstance(message, dict) and _repeats(message, call.call_id, text):
                return True
    return False


def _repeats(message: dict[str, object], call_id: str, text: str) -> bool:
    listed = message.get("tool_calls")
    ids = [item.get("id") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    ids.append(message.get("call_id"))
    if any(isinstance(identity, str) and call_of_tool_call(identity) == call_id for identity in ids):
        return True
    return bool(text) and message.get("role") == "assistant" and content_text(message.get("content")).strip() == text
