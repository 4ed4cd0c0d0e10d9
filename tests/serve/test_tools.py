"""Tools: read out of what a model writes, in any pieces; forced by grammars, with the log-probs of what was sampled."""

from __future__ import annotations

import itertools
import json

import jsonschema
import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax.serve.generation import GenerationRequest
from lightning_jax.serve.grammar import Constrainer
from lightning_jax.serve.tools import ToolReader, for_template, forced_call, form_of
from tests.serve.conftest import MODEL, Server

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "stop"}},
]
ASK = [{"role": "user", "content": "hi"}]
NAMES = ["weather", "stop"]
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
BLOCK = f"<tool_call>\n{CALL}\n</tool_call>"
ARGUMENTS = '{"city": "Rome"}'


def read(form: str, pieces: list[str], **options) -> tuple[str, list[tuple[str, str]]]:
    reader = ToolReader(form, NAMES, "g", **options)
    content, calls = "", []
    for piece in pieces:
        text, new = reader.feed(piece)
        content, calls = content + text, calls + new
    text, new = reader.finish("")
    calls += new
    assert calls == reader.calls
    assert [c.id for c in calls] == [f"call_g_{i}" for i in range(len(calls))]
    return content + text, [(c.name, c.arguments) for c in calls]


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        ("hermes", BLOCK, "", [("weather", ARGUMENTS)]),
        ("hermes", f"Let me see.\n{BLOCK}\n{BLOCK}\n", "Let me see.", [("weather", ARGUMENTS)] * 2),
        ("hermes", f"<tool_call>{CALL}", "", [("weather", ARGUMENTS)]),
        ("hermes", "<tool_call>{oops}</tool_call> so", "<tool_call>{oops}</tool_call> so", []),
        ("hermes", '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>', "", [("nobody", "{}")]),
        ("hermes", "a <tool_ b <tool_call", "a <tool_ b <tool_call", []),
        ("hermes", CALL, "", [("weather", ARGUMENTS)]),
        ("llama3", '<|python_tag|>{"name": "stop", "parameters": {}}', "", [("stop", "{}")]),
        ("llama3", "plain  words \n", "plain  words \n", []),
        ("json", f"```json\n{CALL}\n```", "", [("weather", ARGUMENTS)]),
        ("json", f"[{CALL}, {CALL}]", "", [("weather", ARGUMENTS)] * 2),
        ("json", '{"name": "Ann", "arguments": {}}', '{"name": "Ann", "arguments": {}}', []),
        ("json", '{"answer": 4}', '{"answer": 4}', []),
        ("json", "[[[[", "[[[[", []),
    ],
)
@given(cuts=st.sets(st.integers(1, 60)))
def test_reading_does_not_depend_on_the_pieces(form, text, content, calls, cuts):
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert read(form, pieces) == (content, calls)


@given(st.text(alphabet="<tol_ca>/{}\"': nameguts\n[]`", max_size=80), st.sampled_from(["hermes", "llama3", "json"]))
def test_any_text_is_read(text, form):
    content, calls = read(form, [text])
    assert read(form, list(text)) == (content, calls)
    assert calls or content == text


def test_one_call_where_parallel_ones_are_not_wanted():
    assert read("hermes", [BLOCK + BLOCK], parallel=False)[1] == [("weather", ARGUMENTS)]


def test_templates_get_objects():
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}
    assert for_template(message)["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    broken = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{a"}}]}
    assert for_template(broken)["tool_calls"][0]["function"]["arguments"] == "{a"
    assert form_of("... <tool_call> ...") == "hermes"
    assert form_of(None) == "json"


@pytest.mark.parametrize("form", ["hermes", "llama3", "json"])
def test_any_walk_through_a_forced_call_is_a_call(tokenizer, form):
    grammar = Constrainer(tokenizer, MODEL.vocab_size).compile(forced_call(form, TOOLS), "tools")
    rng = np.random.default_rng(0)
    for _ in range(10):
        matcher, ids, words = grammar.matcher(), [], np.zeros(9, np.int32)
        while True:
            matcher.fill(words)
            allowed = [t for t in range(MODEL.vocab_size) if int(words[t // 32]) >> t % 32 & 1]
            token = int(rng.choice(allowed))
            if token in tokenizer.eos_ids:
                break
            ids.append(token)
            assert matcher.accept(token)
        ((name, arguments),) = read(form, [tokenizer.decode(ids)])[1]
        if name == "weather":
            jsonschema.validate(json.loads(arguments), WEATHER)
        else:
            assert (name, arguments) == ("stop", "{}")


def client(server: Server, number: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url(number), api_key=f"ljx-key-{number}")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_forced_calls_plain_and_streamed(wide_server, choice):
    options = {"model": "m", "messages": ASK, "tools": TOOLS, "tool_choice": choice, "max_tokens": 120}
    with client(wide_server, 1) as plain, client(wide_server, 1) as other:
        answers = [plain.chat.completions.create(**options) for _ in range(3)]
        for answer in answers:
            (call,) = answer.choices[0].message.tool_calls
            assert answer.choices[0].finish_reason == "tool_calls"
            assert answer.choices[0].message.content is None
            assert call.id == f"call_{answer.id.removeprefix('chatcmpl-')}_0"
            if call.function.name == "weather":
                jsonschema.validate(json.loads(call.function.arguments), WEATHER)
            assert choice == "required" or call.function.name == "weather"
        with other.chat.completions.stream(**options) as stream:
            final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert call.function.name in NAMES
    calls = wide_server.sink.of(1)
    assert [c.finish_reason for c in calls] == ["tool_calls"] * 4
    assert all(0.0 < c.sampling.kept_mass < 1.0 for c in calls)
    assert all(np.isfinite(c.rollout_logps).all() for c in calls)
    tokens = wide_server.engine.eos_ids
    assert all(c.response_ids[-1] in tokens for c in calls)


def test_schemas_bind_answers(wide_server):
    shape = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}}
    with client(wide_server, 2) as api:
        answer = api.chat.completions.create(model="m", messages=ASK, response_format=shape)
        jsonschema.validate(json.loads(answer.choices[0].message.content), WEATHER)
        with_tools = api.chat.completions.create(model="m", messages=ASK, response_format=shape, tools=TOOLS, n=4)
        for choice in with_tools.choices:
            if choice.message.tool_calls:
                assert choice.finish_reason == "tool_calls"
            else:
                jsonschema.validate(json.loads(choice.message.content), WEATHER)
        free = api.chat.completions.create(
            model="m", messages=ASK, response_format={"type": "json_object"}, max_tokens=30
        )
        assert free.choices[0].message.content.startswith("{")


def test_constrained_sampling_is_as_pure(wide_server, tokenizer):
    engine = wide_server.engine
    grammar = Constrainer(tokenizer, MODEL.vocab_size).compile(forced_call("json", TOOLS), "tools")
    prompts = [np.asarray(tokenizer.encode(f"prompt {i}"), np.int32) for i in range(12)]
    batch = [
        GenerationRequest(p, 60, (1.0, 0.7)[i % 2], (1.0, 0.8)[i % 3 == 0], i, grammar=grammar if i % 2 else None)
        for i, p in enumerate(prompts)
    ]
    alone = [engine.submit(r).result(60) for r in batch]
    together = [g.result(60) for g in [engine.submit(r) for r in reversed(batch)]][::-1]
    for a, b in zip(alone, together, strict=True):
        assert a.response_ids.tolist() == b.response_ids.tolist()
        assert a.rollout_logps.tobytes() == b.rollout_logps.tobytes()
        assert a.kept_mass == b.kept_mass
    assert all(r.kept_mass == 1.0 for r, q in zip(alone, batch, strict=True) if q.grammar is None and q.top_p == 1.0)


def test_tools_are_rendered_and_replayed(wide_server, tokenizer):
    replay = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_x_0", "type": "function", "function": {"name": "stop", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_x_0", "content": "done"},
    ]  # fmt: skip
    with client(wide_server, 3) as api:
        answer = api.chat.completions.create(
            model="m", messages=replay, tools=TOOLS, max_tokens=5, extra_body={"return_token_ids": True}
        )
        hidden = api.chat.completions.create(model="m", messages=ASK, tools=TOOLS, tool_choice="none", max_tokens=2)
    first, second = wide_server.sink.of(3)
    assert "weather" in tokenizer.decode(first.prompt_ids.tolist())
    assert second.prompt_ids.tolist() == tokenizer.encode_chat(ASK)
    assert answer.prompt_token_ids == first.prompt_ids.tolist()
    assert answer.choices[0].token_ids == first.response_ids.tolist()
    assert answer.policy_version == 0
    assert hidden.choices[0].message.tool_calls is None
