"""The JSON and the server-sent events of an answer, in OpenAI's shapes.

Always there, because some framework fails without it: id, object, created, model, index, finish_reason, usage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from lightning_jax.serve.answer import Answer, Choice, Delta
from lightning_jax.serve.errors import ApiError
from lightning_jax.serve.generation import Alternatives

Decode = Callable[[Sequence[int]], str]
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8; lone surrogates stay escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """The last event of a stream that broke; no [DONE] follows."""
    return event(error.body())


def usage(answer: Answer) -> dict[str, int]:
    """Token counts; the prompt counts once however many choices."""
    completion = sum(len(choice.text.ids) for choice in answer.choices)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": answer.prompt_tokens + completion,
    }


def token_logprobs(
    ids: Sequence[int], logps: Sequence[float], tops: Sequence[Alternatives], decode: Decode
) -> list[dict[str, Any]]:
    """Each token sampled, with what else might have been where `tops` tells."""

    def told(token: int, logp: float) -> dict[str, Any]:
        text = decode([token])
        return {"token": text, "logprob": logp, "bytes": list(text.encode("utf-8", "replace"))}

    return [
        {**told(token, logp), "top_logprobs": [told(*other) for other in (tops[i] if i < len(tops) else ())]}
        for i, (token, logp) in enumerate(zip(ids, logps, strict=True))
    ]


def choice_logprobs(
    ids: Sequence[int], logps: Sequence[float], tops: Sequence[Alternatives], decode: Decode
) -> dict[str, Any]:
    """The `logprobs` member of a chat's choice."""
    return {"content": token_logprobs(ids, logps, tops, decode), "refusal": None}


def message(choice: Choice) -> dict[str, Any]:
    """The assistant's message of a choice; content is null only beside calls."""
    calls = choice.reader.calls if choice.reader is not None else []
    out: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if calls:
        out["content"] = choice.content or None
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return out


def completion(answer: Answer, model: str, decode: Decode, *, logprobs: bool, token_ids: bool = False) -> bytes:
    """The body of a plain answer. token_ids: with the extension fields prompt_token_ids, token_ids, policy_version."""
    choices = [
        {
            "index": choice.index,
            "message": message(choice),
            "logprobs": choice_logprobs(choice.text.ids, choice.text.logps, choice.tops, decode) if logprobs else None,
            "finish_reason": choice.finish_reason,
            **({"token_ids": choice.text.ids.tolist()} if token_ids else {}),
        }
        for choice in answer.choices
    ]
    return encode(
        {
            **_head(answer, model, "chat.completion"),
            "choices": choices,
            "usage": usage(answer),
            **(extensions(answer) if token_ids else {}),
        }
    )


def extensions(answer: Answer, index: int = 0) -> dict[str, Any]:
    """What training code wants beside OpenAI's fields, of one choice."""
    choice = answer.choices[index]
    return {"prompt_token_ids": choice.request.prompt_ids.tolist(), "policy_version": choice.policy_version}


class ChunkWriter:
    """Turns deltas into `chat.completion.chunk` events."""

    ends_with_deltas = True

    def __init__(
        self,
        answer: Answer,
        model: str,
        decode: Decode,
        *,
        logprobs: bool,
        include_usage: bool,
        token_ids: bool = False,
    ) -> None:
        """token_ids: tokens ride on the events of their text, the prompt's and the version on a choice's last one."""
        self._answer = answer
        self._token_ids = token_ids
        self._head = _head(answer, model, "chat.completion.chunk")
        self._decode = decode
        self._logprobs = logprobs
        self._include_usage = include_usage

    def opening(self) -> bytes:
        """The first event of every choice: the role."""
        return b"".join(
            self._chunk(choice.index, {"role": "assistant", "content": ""}, None, None)
            for choice in self._answer.choices
        )

    def delta(self, delta: Delta) -> bytes:
        """Text, then the end where it is one."""
        told = self._logprobs and delta.ids
        logprobs = choice_logprobs(delta.ids, delta.logps, delta.tops, self._decode) if told else None
        out = b""
        if delta.text or logprobs is not None or (self._token_ids and delta.ids):
            ids = delta.ids if self._token_ids else None
            out = self._chunk(delta.index, {"content": delta.text}, logprobs, None, ids)
        for call in delta.calls:
            number = int(call.id.rpartition("_")[2])
            opened = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            for part in (opened, {"function": {"arguments": call.arguments}}):
                out += self._chunk(delta.index, {"tool_calls": [{"index": number, **part}]}, None, None)
        if delta.finish_reason is not None:
            out += self._chunk(delta.index, {}, None, delta.finish_reason)
        return out

    def closing(self) -> bytes:
        """Usage where it was asked for, and [DONE]."""
        if not self._include_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": usage(self._answer)}) + DONE

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: Any, reason: str | None, ids: list[int] | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        extra: dict[str, Any] = {"usage": None} if self._include_usage else {}
        if ids is not None:
            choice["token_ids"] = ids
        if reason is not None and self._token_ids:
            extra |= extensions(self._answer, index)
        return event({**self._head, "choices": [choice], **extra})


def _head(answer: Answer, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.call_id}", "object": kind, "created": answer.created, "model": model}
