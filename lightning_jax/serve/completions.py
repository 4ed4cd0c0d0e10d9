"""/v1/completions: a prompt as text or token ids, without a chat template."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

from lightning_jax.serve.answer import Answer, Choice, Delta
from lightning_jax.serve.chat_request import MAX_TOP_LOGPROBS, ChatRequest, parse_body, read_object
from lightning_jax.serve.errors import invalid
from lightning_jax.serve.responses import DONE, Decode, encode, event, extensions, usage


def parse_completion(raw: bytes, max_choices: int) -> ChatRequest:
    """Read a request body; ApiError 400 names the parameter."""
    body = read_object(raw)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    whole = isinstance(prompt, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt)
    if not prompt or not (isinstance(prompt, str) or whole):
        raise invalid("prompt must be one text or one list of token ids, not empty", "prompt")
    kept = {k: v for k, v in body.items() if k not in ("prompt", "logprobs", "messages", "tools")}
    wanted = body.get("logprobs")
    chat = {
        **kept,
        "messages": [{"role": "user", "content": ""}],
        "logprobs": wanted is not None and wanted is not False,
        "top_logprobs": _alternatives(wanted),
    }
    return parse_body(chat, max_choices, received=body, prompt=prompt if isinstance(prompt, str) else tuple(prompt))


def _alternatives(wanted: Any) -> int:
    """The older way of asking: logprobs is a number of alternatives."""
    if wanted is None or isinstance(wanted, bool):
        return 0
    if not isinstance(wanted, int) or not 0 <= wanted <= MAX_TOP_LOGPROBS:
        raise invalid(f"logprobs={wanted!r} must be an integer from 0 to {MAX_TOP_LOGPROBS}", "logprobs")
    return wanted


def completion_body(answer: Answer, chat: ChatRequest, model: str, decode: Decode) -> bytes:
    """The body of a plain answer."""
    choices = [_choice(_whole(c), chat, decode) for c in answer.choices]
    extra = extensions(answer) if chat.token_ids else {}
    return encode({**_head(answer, model), "choices": choices, "usage": usage(answer), **extra})


class CompletionChunks:
    """Turns deltas into the events of a streamed completion (the interface of `responses.ChunkWriter`)."""

    ends_with_deltas = True

    def __init__(self, answer: Answer, chat: ChatRequest, model: str, decode: Decode) -> None:
        self._answer, self._chat, self._decode = answer, chat, decode
        self._head = _head(answer, model)
        self._offsets: Counter[int] = Counter()  # characters of the tokens told of each choice

    def opening(self) -> bytes:
        """Nothing: the first text comes first."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """Text, and the end where it is one."""
        choice = _choice(delta, self._chat, self._decode, self._offsets[delta.index])
        self._offsets[delta.index] += sum(len(token) for token in (choice["logprobs"] or {}).get("tokens", ()))
        ended = delta.finish_reason is not None and self._chat.token_ids
        return event({**self._head, "choices": [choice], **(extensions(self._answer, delta.index) if ended else {})})

    def closing(self) -> bytes:
        """Usage where it was asked for, and [DONE]."""
        if not self._chat.include_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": usage(self._answer)}) + DONE


def _head(answer: Answer, model: str) -> dict[str, Any]:
    return {"id": f"cmpl-{answer.call_id}", "object": "text_completion", "created": answer.created, "model": model}


def _whole(choice: Choice) -> Delta:
    ids, logps = choice.text.ids.tolist(), choice.text.logps.tolist()
    return Delta(choice.index, choice.content, [], ids, logps, choice.tops[: len(ids)], choice.finish_reason)


def _choice(delta: Delta, chat: ChatRequest, decode: Decode, offset: int = 0) -> dict[str, Any]:
    """offset: characters of the choice's tokens before these."""
    logprobs = None
    if chat.logprobs:
        tokens = [decode([token]) for token in delta.ids]
        offsets = list(accumulate((len(token) for token in tokens), initial=offset))[:-1]
        tops = [{decode([token]): logp for token, logp in top} for top in delta.tops]
        logprobs = {
            "tokens": tokens, "token_logprobs": list(delta.logps), "top_logprobs": tops or None, "text_offset": offsets
        }  # fmt: skip
    out = {"index": delta.index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish_reason}
    return {**out, "token_ids": list(delta.ids)} if chat.token_ids else out
