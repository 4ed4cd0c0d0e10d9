"""Answers that an earlier process recorded, made again for a retry: the same bytes, no new sample.

What was told of a choice follows from its tokens, so that a record of them suffices. What doesn't (alternatives of
tokens, which nobody stores; an answer of which only some choices became durable) is sampled anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_jax.serve.answer import Choice
from lightning_jax.serve.chat_request import ChatRequest
from lightning_jax.types import Call


def answers_of(calls: Sequence[Call], chat: ChatRequest, oldest_ns: int) -> tuple[list[list[Call]], list[Call]]:
    """(calls of each answer that can be given again, calls of others that a new sample replaces).

    calls: those recorded of one request, by sequence. An answer's choices began at the same time.
    """
    together: dict[int, list[Call]] = {}
    for call in calls:
        if not call.superseded_by:
            together.setdefault(call.started_ns, []).append(call)
    whole, broken = [], []
    for group in together.values():
        complete = len(group) == chat.n and not chat.top_logprobs and group[-1].ended_ns >= oldest_ns
        if complete and all(call.finish_reason != "abort" for call in group):
            whole.append(group)
        else:
            broken += [call for call in group if call.delivered_ns <= 0]
    return whole, broken


def refill(choice: Choice, call: Call) -> None:
    """Give a choice without tokens those of a recorded call, as they were given to the first one."""
    choice.text.feed(call.response_ids.tolist(), call.rollout_logps.tolist())
    text = choice.text.take(final=True)
    if choice.reader is not None:
        text, _ = choice.reader.finish(text)
    choice.content = text
    choice.policy_version = call.policy_version
    choice.finish_reason = call.finish_reason
