"""/v1/responses and /v1/completions through OpenAI's own client, plain and streamed."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest

from lightning_jax.serve.answer import Choice, Delta
from lightning_jax.serve.generation import GenerationRequest
from lightning_jax.serve.responses_answer import ResponseEvents
from lightning_jax.serve.responses_request import parse_responses
from lightning_jax.serve.text import ResponseText
from lightning_jax.serve.tools import ToolCall
from tests.serve.conftest import Server, serving
from tests.serve.test_chat import MESSAGES, client, post
from tests.serve.test_tools import TOOLS, WEATHER

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
INPUT = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]


def test_response_is_the_chat_with_the_same_meaning(wide_server: Server, tokenizer):
    with client(wide_server, 1) as api:
        answer = api.responses.create(model="m", instructions="be", input=INPUT, max_output_tokens=6)
    (call,) = wide_server.sink.of(1)
    assert call.prompt_ids.tolist() == tokenizer.encode_chat(MESSAGES)
    assert answer.id == f"resp_{call.call_id}"
    assert answer.output_text == call.text
    assert answer.usage.input_tokens == len(call.prompt_ids)
    assert answer.usage.output_tokens == len(call.response_ids)
    assert answer.status == ("incomplete" if call.finish_reason == "length" else "completed")
    assert call.request["input"] == INPUT


def test_agent_key_is_that_of_the_chat(wide_server):
    with client(wide_server, 1) as api:
        api.responses.create(model="m", instructions="be", input="hello", tools=FLAT, max_output_tokens=2)
        api.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, max_tokens=2)
    first, second = wide_server.sink.of(1)
    assert first.agent_key == second.agent_key
    assert first.prompt_ids.tolist() == second.prompt_ids.tolist()


def test_forced_function_call_and_its_output(wide_server):
    options = {"model": "m", "input": INPUT, "tools": FLAT, "max_output_tokens": 150}
    with client(wide_server, 2) as api:
        answer = api.responses.create(**options, tool_choice={"type": "function", "name": "weather"})
        (item,) = answer.output
        assert (item.type, item.name) == ("function_call", "weather")
        assert item.call_id == f"call_{answer.id.removeprefix('resp_')}_0"
        jsonschema.validate(json.loads(item.arguments), WEATHER)
        replay = [*INPUT, item.to_dict(), {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}]
        again = api.responses.create(**{**options, "input": replay}, tool_choice="none")
    assert again.output[0].type == "message"
    assert wide_server.sink.of(2)[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"tools": FLAT, "tool_choice": "required"},
        {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    ],
)
def test_streamed_response_is_the_plain_one(engine, wide_engine, tokenizer, extra):
    options = {"model": "m", "input": INPUT, "max_output_tokens": 140, **extra}
    with serving(wide_engine, tokenizer) as one, client(one, 1) as api:
        plain = api.responses.create(**options)
    with serving(wide_engine, tokenizer) as two, client(two, 1) as api:
        kinds = []
        with api.responses.stream(**options) as stream:
            for event in stream:
                kinds.append(event.type)
            final = event.response  # the client's own helper knows only complete ones
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")

    def logprobs(response):
        return [t.to_dict() for i in response.output if i.type == "message" for t in i.content[0].logprobs or []]

    assert logprobs(final) == logprobs(plain)
    assert len(logprobs(plain)) == (plain.usage.output_tokens if "include" in extra else 0)
    assert all(len(t["top_logprobs"]) == 2 for t in logprobs(plain))

    def told(response):
        return [(i.type, getattr(i, "name", ""), getattr(i, "arguments", "")) for i in response.output]

    assert told(final) == told(plain)
    assert final.output_text == plain.output_text
    assert final.usage == plain.usage


def test_typed_responses(wide_server):
    shape = {"format": {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}}
    with client(wide_server, 3) as api:
        answer = api.responses.create(model="m", input="hello", text=shape)
    jsonschema.validate(json.loads(answer.output_text), WEATHER)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input[0]"),
    ],
)
def test_refused_responses(wide_server, body, param):
    answer = post(wide_server, body, 1, "responses")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_completions(wide_server, tokenizer):
    with client(wide_server, 4) as api:
        text = api.completions.create(model="m", prompt="hello", max_tokens=5, logprobs=1, n=2)
        ids = api.completions.create(model="m", prompt=tokenizer.encode("hello"), max_tokens=5)
        pieces = list(api.completions.create(model="m", prompt="hello", max_tokens=5, stream=True, logprobs=0))
    calls = wide_server.sink.of(4)
    assert all(c.prompt_ids.tolist() == tokenizer.encode("hello") for c in calls)
    assert [c.text for c in text.choices] == [c.text for c in calls[:2]]
    assert text.choices[0].logprobs.token_logprobs == pytest.approx(calls[0].rollout_logps.tolist())
    for choice in text.choices:
        assert [len(top) for top in choice.logprobs.top_logprobs] == [1] * len(choice.logprobs.tokens)
        for top, token, logp in zip(
            choice.logprobs.top_logprobs, choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True
        ):
            assert top.get(token, max(top.values())) >= logp - 1e-5
        tokens, offsets = choice.logprobs.tokens, choice.logprobs.text_offset
        assert offsets == [len("".join(tokens[:n])) for n in range(len(tokens))]
    assert ids.choices[0].text == calls[2].text
    assert "".join(p.choices[0].text for p in pieces) == calls[3].text
    assert pieces[-1].choices[0].finish_reason == calls[3].finish_reason
    told = [piece.choices[0].logprobs for piece in pieces]
    tokens = [token for piece in told for token in piece.tokens]
    assert [o for piece in told for o in piece.text_offset] == [len("".join(tokens[:n])) for n in range(len(tokens))]
    assert post(wide_server, {"prompt": ["a", "b"]}, 4, "completions").json()["error"]["param"] == "prompt"
    assert post(wide_server, {"prompt": [-1]}, 4, "completions").status_code == 400


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_streamed_extension_fields(wide_server, path):
    """What `return_token_ids` tells of a stream, put together, is what was recorded."""
    asked = {"messages": MESSAGES} if path.startswith("chat") else {"prompt": "hello"}
    body = {**asked, "max_tokens": 9, "n": 2, "stream": True, "return_token_ids": True}
    lines = post(wide_server, body, 5, path).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for index, call in enumerate(wide_server.sink.of(5)):
        mine = [event for event in events if event["choices"][0]["index"] == index]
        assert [t for e in mine for t in e["choices"][0].get("token_ids", [])] == call.response_ids.tolist()
        (last,) = [event for event in mine if "policy_version" in event]
        assert last["choices"][0]["finish_reason"] == call.finish_reason
        assert (last["prompt_token_ids"], last["policy_version"]) == (call.prompt_ids.tolist(), call.policy_version)


def test_items_of_a_response_have_ids_of_their_own(wide_server, tokenizer):
    """Text, a call and text again, streamed: three items, three ids, and deltas that name theirs."""
    events = answered(tokenizer, ["a", "", "b"], [[], [ToolCall("call_7_0", "f", "{}")], []])
    items = [e["item"]["id"] for e in events if e["type"] == "response.output_item.done"]
    assert items == ["msg_7", "fc_7_0", "msg_7_2"]
    assert [e["item_id"] for e in events if e["type"] == "response.output_text.delta"] == ["msg_7", "msg_7_2"]
    assert [item["id"] for item in events[-1]["response"]["output"]] == items


def answered(tokenizer, texts, calls):
    """The events of an answer that came in these pieces."""
    request = GenerationRequest(np.zeros(1, np.int32), 1)
    choice = Choice(0, "7", 0, 0, request, ResponseText(tokenizer.decode), finish_reason="stop")
    answer = SimpleNamespace(call_id="7", created=1, prompt_tokens=1, choices=[choice])
    writer = ResponseEvents(answer, parse_responses(b'{"input": "x"}', 1), "m", tokenizer.decode)
    raw = [
        writer.opening(),
        *(writer.delta(Delta(0, t, c)) for t, c in zip(texts, calls, strict=True)),
        writer.closing(),
    ]
    return [json.loads(line[6:]) for line in b"".join(raw).decode().splitlines() if line.startswith("data: ")]
