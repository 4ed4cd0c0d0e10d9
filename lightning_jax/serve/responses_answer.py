"""The JSON and the events of an answer in the shapes of OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

from lightning_jax.serve.answer import Answer, Choice, Delta
from lightning_jax.serve.chat_request import ChatRequest
from lightning_jax.serve.responses import Decode, encode, extensions, token_logprobs
from lightning_jax.serve.tools import ToolCall

Logprobs = list[dict[str, Any]]


def response_body(answer: Answer, chat: ChatRequest, model: str, decode: Decode) -> bytes:
    """The body of a plain answer."""
    choice = answer.choices[0]
    logprobs = token_logprobs(choice.text.ids, choice.text.logps, choice.tops, decode) if chat.logprobs else []
    return encode(_response(answer, chat, model, _items(choice, logprobs)))


def _response(answer: Answer, chat: ChatRequest, model: str, output: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The response object; output None: nothing is there yet."""
    choice, received = answer.choices[0], chat.body
    status, details, usage = "in_progress", None, None
    if output is not None:
        cut = choice.finish_reason in ("length", "abort")
        status, details = ("incomplete", {"reason": "max_output_tokens"}) if cut else ("completed", None)
        count = len(choice.text.ids)
        usage = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + count,
        }
    return {
        "id": f"resp_{answer.call_id}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": details,
        "instructions": received.get("instructions"),
        "max_output_tokens": received.get("max_output_tokens"),
        "model": model,
        "output": output or [],
        "parallel_tool_calls": chat.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": chat.temperature,
        "text": received.get("text") or {"format": {"type": "text"}},
        "tool_choice": received.get("tool_choice") or "auto",
        "tools": received.get("tools") or [],
        "top_p": chat.top_p,
        "truncation": "disabled",
        "usage": usage,
        "user": None,
        "metadata": received.get("metadata") or {},
        **(_extensions(answer) if chat.token_ids and output is not None else {}),
    }


def _extensions(answer: Answer) -> dict[str, Any]:
    return {**extensions(answer), "token_ids": answer.choices[0].text.ids.tolist()}


def _items(choice: Choice, logprobs: Logprobs) -> list[dict[str, Any]]:
    """Text, where there is any or nothing else, then the calls."""
    calls = choice.reader.calls if choice.reader is not None else []
    texts = [_message(f"msg_{choice.call_id}", choice.content, logprobs)] if choice.content or not calls else []
    return [*texts, *(_call(call, call.arguments, "completed") for call in calls)]


def _message(item_id: str, text: str | None, logprobs: Logprobs) -> dict[str, Any]:
    """text None: it has only begun."""
    content = [] if text is None else [_part(text, logprobs)]
    status = "in_progress" if text is None else "completed"
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def _part(text: str, logprobs: Logprobs) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _call(call: ToolCall, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": call.id.replace("call_", "fc_", 1),
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
    }


class ResponseEvents:
    """Turns deltas into the events of a streamed response (the interface of `responses.ChunkWriter`)."""

    ends_with_deltas = False

    def __init__(self, answer: Answer, chat: ChatRequest, model: str, decode: Decode) -> None:
        self._answer, self._chat, self._model, self._decode = answer, chat, model, decode
        self._logprobs: Logprobs = []  # of the open message
        self._number = 0  # of the next event
        self._text: str | None = None  # of the open message; None where none is open
        self._output: list[dict[str, Any]] = []

    def opening(self) -> bytes:
        """The response has begun."""
        response = _response(self._answer, self._chat, self._model, None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def delta(self, delta: Delta) -> bytes:
        """Text, then calls."""
        out = b""
        told = token_logprobs(delta.ids, delta.logps, delta.tops, self._decode) if self._chat.logprobs else []
        if delta.text:
            out += self._open() if self._text is None else b""
            self._text = (self._text or "") + delta.text
            out += self._event("response.output_text.delta", **self._place(), delta=delta.text, logprobs=told)
        self._logprobs = [*self._logprobs, *told]  # also of tokens without text, such as the one that ends the response
        for call in delta.calls:
            out += self._close() + self._called(call)
        return out

    def closing(self) -> bytes:
        """The whole response once more."""
        out = self._open() if not self._output and self._text is None else b""
        out += self._close()
        response = _response(self._answer, self._chat, self._model, self._output)
        return out + self._event(f"response.{response['status']}", response=response)

    def _open(self) -> bytes:
        self._text = ""
        item = _message(self._item_id(), None, [])
        return self._event("response.output_item.added", output_index=len(self._output), item=item) + self._event(
            "response.content_part.added", **self._place(), part=_part("", [])
        )

    def _close(self) -> bytes:
        if self._text is None:
            return b""
        place, text, self._text = self._place(), self._text, None
        part = _part(text, self._logprobs)
        logprobs, self._logprobs = self._logprobs, []
        item = _message(place["item_id"], text, logprobs)
        self._output.append(item)
        return (
            self._event("response.output_text.done", **place, text=text, logprobs=logprobs)
            + self._event("response.content_part.done", **place, part=part)
            + self._event("response.output_item.done", output_index=place["output_index"], item=item)
        )

    def _called(self, call: ToolCall) -> bytes:
        self._logprobs = []  # those of a call are no text's
        index, item = len(self._output), _call(call, call.arguments, "completed")
        self._output.append(item)
        place = {"item_id": item["id"], "output_index": index}
        return (
            self._event("response.output_item.added", output_index=index, item=_call(call, "", "in_progress"))
            + self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
            + self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments)
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id(), "output_index": len(self._output), "content_index": 0}

    def _item_id(self) -> str:
        """Of the open message; text may go on after calls, as another item."""
        number = len(self._output)
        return f"msg_{self._answer.call_id}" + (f"_{number}" if number else "")

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"
