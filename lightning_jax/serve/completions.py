"""/v1/completions: a prompt as text or token ids, without a chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning_jax.serve.answer import Answer, Choice, Delta
from lightning_jax.serve.chat_request import ChatRequest, parse_body, read_object
from lightning_jax.serve.errors import invalid
from lightning_jax.serve.responses import DONE, Decode, encode, event, extensions, usage

Encode = Callable[[str], list[int]]
_REFUSED = ("echo", "suffix", "best_of")


def parse_completion(raw: bytes, max_choices: int) -> ChatRequest:
    """Read a request body; ApiError 400 names the parameter."""
    body = read_object(raw)
    for name in _REFUSED:
        if body.get(name) not in (None, False, 1, ""):
            raise invalid(f"{name} is not supported", name, "unsupported_parameter")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    whole = isinstance(prompt, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt)
    if not prompt or not (isinstance(prompt, str) or whole):
        raise invalid("prompt must be one text or one list of token ids, not empty", "prompt")
    kept = {k: v for k, v in body.items() if k not in ("prompt", "logprobs", "messages", "tools", *_REFUSED)}
    wanted = body.get("logprobs")
    chat = {
        **kept,
        "messages": [{"role": "user", "content": ""}],
        "logprobs": wanted is not None and wanted is not False,
    }
    return parse_body(chat, max_choices, received=body, prompt=prompt if isinstance(prompt, str) else tuple(prompt))


def completion_body(answer: Answer, chat: ChatRequest, model: str, decode: Decode) -> bytes:
    """The body of a plain answer."""
    choices = [_choice(c, c.content, c.text.ids, c.text.logps, c.finish_reason, chat, decode) for c in answer.choices]
    extra = extensions(answer) if chat.token_ids else {}
    return encode({**_head(answer, model), "choices": choices, "usage": usage(answer), **extra})


class CompletionChunks:
    """Turns deltas into the events of a streamed completion (the interface of `responses.ChunkWriter`)."""

    def __init__(self, answer: Answer, chat: ChatRequest, model: str, decode: Decode) -> None:
        self._answer, self._chat, self._decode = answer, chat, decode
        self._head = _head(answer, model)

    def opening(self) -> bytes:
        """Nothing: the first text comes first."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """Text, and the end where it is one."""
        choice = self._answer.choices[delta.index]
        body = _choice(choice, delta.text, delta.ids, delta.logps, delta.finish_reason, self._chat, self._decode)
        return event({**self._head, "choices": [body]})

    def closing(self) -> bytes:
        """Usage where it was asked for, and [DONE]."""
        if not self._chat.include_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": usage(self._answer)}) + DONE


def _head(answer: Answer, model: str) -> dict[str, Any]:
    return {"id": f"cmpl-{answer.call_id}", "object": "text_completion", "created": answer.created, "model": model}


def _choice(
    choice: Choice,
    text: str,
    ids: Sequence[int],
    logps: Sequence[float],
    reason: str | None,
    chat: ChatRequest,
    decode: Decode,
) -> dict[str, Any]:
    logprobs = None
    if chat.logprobs:
        tokens = [decode([token]) for token in ids]
        logprobs = {"tokens": tokens, "token_logprobs": list(logps), "top_logprobs": None, "text_offset": []}
    out = {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": reason}
    return {**out, "token_ids": list(ids)} if chat.token_ids else out
