"""Real clients over real sockets: shapes, streaming, attribution, durability."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import openai
import pytest

from lightning_jax.model.transformer import forward, head
from lightning_jax.serve.calls import call_seed
from lightning_jax.serve.engine import GenerationRequest
from lightning_jax.types import SamplingDefaults
from tests.serve.conftest import MODEL, Server, eventually, policy, serving

MESSAGES = [{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}]


def client(server: Server, number: int, **options) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url(number), api_key=f"ljx-key-{number}", **options)


def post(server: Server, body, number: int | None = 0, path: str = "chat/completions", **headers) -> httpx.Response:
    base = f"{server.root}/v1" if number is None else server.base_url(number)
    key = {} if number is None else {"authorization": f"Bearer ljx-key-{number}"}
    content = body if isinstance(body, bytes) else json.dumps(body)
    return httpx.post(f"{base}/{path}", content=content, headers={**key, **headers}, timeout=60)


def test_openai_client_gets_what_was_recorded(server, engine, tokenizer):
    with client(server, 1) as api:
        raw = api.chat.completions.with_raw_response.create(
            model="any", messages=MESSAGES, max_tokens=12, logprobs=True, temperature=0.3
        )
    answer = raw.parse()
    (call,) = server.sink.of(1)
    assert (answer.id, raw.headers["x-ljx-generation-id"]) == (f"chatcmpl-{call.call_id}", call.call_id)
    assert (answer.object, answer.model, answer.choices[0].index) == ("chat.completion", "any", 0)
    assert answer.choices[0].message.content == call.text == tokenizer.decode(call.response_ids.tolist())
    assert answer.choices[0].finish_reason == call.finish_reason
    assert [t.logprob for t in answer.choices[0].logprobs.content] == pytest.approx(call.rollout_logps.tolist())
    assert call.prompt_ids.tolist() == tokenizer.encode_chat(MESSAGES)
    assert answer.usage.prompt_tokens == len(call.prompt_ids)
    assert answer.usage.total_tokens == len(call.prompt_ids) + len(call.response_ids)
    assert (call.rollout_id, call.attempt_id, call.sequence, call.policy_version) == ("ro-1", "at-1", 0, 0)
    assert call.sampling.temperature == 1.0  # train mode samples from the policy itself
    assert call.sampling.seed == call_seed(1001, call.prompt_ids, 0)
    assert call.request["temperature"] == 0.3
    again = engine.submit(GenerationRequest(call.prompt_ids, 12, 1.0, 1.0, call.sampling.seed)).result(60)
    assert again.response_ids.tolist() == call.response_ids.tolist()
    assert again.rollout_logps.tobytes() == call.rollout_logps.tobytes()


def test_stream_equals_plain(server):
    for number, extra in ((1, {}), (2, {"stop": ["a", "e", "\x00"]}), (3, {"n": 3})):
        server.sink.grants[f"ljx-key-{number + 3}"] = replace(
            server.sink.grants[f"ljx-key-{number + 3}"],
            rollout=replace(server.sink.grants[f"ljx-key-{number + 3}"].rollout, seed=1000 + number),
        )
        with client(server, number) as one, client(server, number + 3) as two:
            options = {"model": "m", "messages": MESSAGES, "max_tokens": 40, "logprobs": True, **extra}
            plain = one.chat.completions.create(**options)
            texts, reasons, logprobs, usage = {}, {}, {}, None
            with two.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}) as stream:
                for chunk in stream:
                    assert chunk.object == "chat.completion.chunk"
                    usage = chunk.usage or usage
                    for choice in chunk.choices:
                        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
                        logprobs.setdefault(choice.index, []).extend(choice.logprobs.content if choice.logprobs else [])
                        if choice.finish_reason:
                            assert choice.index not in reasons
                            reasons[choice.index] = choice.finish_reason
        assert usage == plain.usage
        for choice in plain.choices:
            assert texts[choice.index] == choice.message.content
            assert reasons[choice.index] == choice.finish_reason
            assert logprobs[choice.index] == choice.logprobs.content
        calls, again = server.sink.of(number), server.sink.of(number + 3)
        assert [c.response_ids.tolist() for c in calls] == [c.response_ids.tolist() for c in again]
        assert [c.sequence for c in calls] == list(range(len(plain.choices)))
        assert len({c.call_id for c in calls + again}) == 2 * len(plain.choices)


@pytest.mark.parametrize("stream", [False, True])
def test_alternatives_are_those_of_the_distribution_sampled(server, tokenizer, stream):
    """The policy's own log-probs, recomputed at temperature 0.5 and, for a nucleus, renormalised within it."""
    for top_p in (1.0, 0.6):
        body = {
            "messages": MESSAGES, "max_tokens": 7, "seed": 3, "temperature": 0.5, "top_p": top_p, "stream": stream,
            "logprobs": True, "top_logprobs": 5,
        }  # fmt: skip
        raw = post(server, body, None)
        if stream:
            events = [json.loads(e[6:]) for e in raw.text.split("\n\n") if e.startswith("data: {")]
            told = [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
        else:
            told = raw.json()["choices"][0]["logprobs"]["content"]
        assert len(told) == 7
        answer = server.engine.submit(
            GenerationRequest(np.asarray(tokenizer.encode_chat(MESSAGES), np.int32), 7, 0.5, top_p, 3)
        ).result(60)
        ids = [*tokenizer.encode_chat(MESSAGES), *answer.response_ids.tolist()]
        mask = jnp.tril(jnp.ones((1, len(ids), len(ids)), bool))
        hidden = forward(policy(), MODEL, jnp.asarray([ids]), jnp.arange(len(ids))[None], mask)
        logits = hidden @ head(policy()).T
        for place, token in enumerate(told):
            logps = np.asarray(jax.nn.log_softmax(logits[0, len(ids) - 8 + place] / 0.5))
            order = np.argsort(-logps, kind="stable")
            kept = order[np.cumsum(np.exp(logps[order])) - np.exp(logps[order]) < top_p] if top_p < 1 else order
            logps = logps - np.log(np.exp(logps[kept]).sum())
            best = kept[:5]
            assert [t["token"] for t in token["top_logprobs"]] == [tokenizer.decode([i]) for i in best]
            assert [t["logprob"] for t in token["top_logprobs"]] == pytest.approx(logps[best].tolist(), abs=1e-3)
            assert token["logprob"] == pytest.approx(logps[answer.response_ids[place]], abs=1e-3)


def test_alternatives_change_no_bit_and_are_cut_with_the_text(server, tokenizer):
    body = {"messages": MESSAGES, "max_tokens": 30, "seed": 5, "logprobs": True}
    plain = post(server, body, None).json()["choices"][0]
    stop = plain["message"]["content"][4:6]
    for extra in ({}, {"stop": stop}):
        without = post(server, {**body, **extra}, None).json()["choices"][0]["logprobs"]["content"]
        told = post(server, {**body, **extra, "top_logprobs": 3}, None).json()["choices"][0]["logprobs"]["content"]
        assert [(t["token"], t["logprob"]) for t in told] == [(t["token"], t["logprob"]) for t in without]
        assert all(len(t["top_logprobs"]) == 3 for t in told)
    assert post(server, {**body, "top_logprobs": 21}, None).json()["error"]["param"] == "top_logprobs"
    assert post(server, {**body, "logprobs": False, "top_logprobs": 2}, None).status_code == 400


def test_stop_string_cuts_text_and_tokens_at_the_same_place(server, engine, tokenizer):
    full = post(server, {"messages": MESSAGES, "max_tokens": 60, "seed": 5}, None).json()
    content = full["choices"][0]["message"]["content"]
    stop = content[4:6]
    cut = post(server, {"messages": MESSAGES, "max_tokens": 60, "seed": 5, "stop": stop}, None).json()
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["choices"][0]["message"]["content"] == content[: content.index(stop)]
    assert cut["usage"]["completion_tokens"] < full["usage"]["completion_tokens"]


def test_durable_before_the_last_byte(server):
    server.sink.hold = True
    got = {"plain": False, "stream": False}
    pieces: list[bytes] = []

    def plain():
        post(server, {"messages": MESSAGES, "max_tokens": 6}, 1)
        got["plain"] = True

    def stream():
        body = {"messages": MESSAGES, "max_tokens": 6, "stream": True}
        headers = {"authorization": "Bearer ljx-key-2"}
        with httpx.stream("POST", f"{server.base_url(2)}/chat/completions", json=body, headers=headers) as response:
            pieces.extend(response.iter_raw())
        got["stream"] = True

    threads = [threading.Thread(target=f) for f in (plain, stream)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(server.sink.held) == 2)
    threads[0].join(0.3)
    assert got == {"plain": False, "stream": False}
    assert b"[DONE]" not in b"".join(pieces)
    assert b'"finish_reason":"' not in b"".join(pieces)
    server.sink.release()
    for thread in threads:
        thread.join(20)
    assert got == {"plain": True, "stream": True}
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


async def test_concurrent_attempts_in_one_process_are_kept_apart(server):
    apis = [openai.AsyncOpenAI(base_url=server.base_url(i), api_key=f"ljx-key-{i}") for i in range(6)]

    async def agent(number: int) -> list[str]:
        texts = []
        for turn in range(3):
            messages = [{"role": "user", "content": f"agent {number} turn {turn}"}]
            options = {"model": "m", "messages": messages, "max_tokens": 8}
            if turn == 1:
                stream = await apis[number].chat.completions.create(**options, stream=True)
                texts.append("".join([c.choices[0].delta.content or "" async for c in stream]))
            else:
                texts.append((await apis[number].chat.completions.create(**options)).choices[0].message.content)
        return texts

    texts = await asyncio.gather(*map(agent, range(6)))
    for api in apis:
        await api.close()
    for number in range(6):
        calls = server.sink.of(number)
        assert [c.sequence for c in calls] == [0, 1, 2]
        assert [c.text for c in calls] == texts[number]
        assert [c.request["messages"][0]["content"] for c in calls] == [f"agent {number} turn {t}" for t in range(3)]


def test_order_of_arrival_changes_no_sample(engine, tokenizer):
    prompts = [f"question {i // 2}" for i in range(8)]  # each asked twice by the same attempt

    def ask(server: Server, order: list[int]) -> dict[str, set[tuple[int, ...]]]:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: post(server, {"messages": [{"role": "user", "content": prompts[i]}]}, 0), order))
        out: dict[str, set[tuple[int, ...]]] = {}
        for call in server.sink.of(0):
            out.setdefault(call.request["messages"][0]["content"], set()).add(tuple(call.response_ids.tolist()))
        return out

    with (
        serving(engine, tokenizer, default_max_tokens=10) as one,
        serving(engine, tokenizer, default_max_tokens=10) as two,
    ):
        first, second = ask(one, list(range(8))), ask(two, list(range(7, -1, -1)))
    assert first == second
    assert all(len(samples) == 2 for samples in first.values())  # a repeated prompt is another sample


def test_sampling_of_the_trainer_wins(server):
    server.sink.add(7, mode="eval", sampling=SamplingDefaults(temperature=0.0, max_tokens=5))
    post(server, {"messages": MESSAGES, "max_tokens": 50, "temperature": 1.5, "top_p": 0.5}, 7)
    post(server, {"messages": MESSAGES, "max_completion_tokens": 3}, 7)
    first, second = server.sink.of(7)
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.max_tokens) == (0.0, 0.5, 5)
    assert second.sampling.max_tokens == 3
    assert first.response_ids[:3].tolist() == second.response_ids.tolist()


def test_agent_key_names_the_speaker(server):
    tool = {"type": "function", "function": {"name": "search", "parameters": {}}}
    for messages, tools in ((MESSAGES, []), (MESSAGES, [tool]), ([*MESSAGES, MESSAGES[1]], []), (MESSAGES[1:], [])):
        assert post(server, {"messages": messages, "tools": tools, "max_tokens": 2}, 3).status_code == 200
    keys = [c.agent_key for c in server.sink.of(3)]
    assert keys[0] == keys[2]
    assert len(set(keys)) == 3
    assert len(server.sink.of(3)[1].prompt_ids) > len(server.sink.of(3)[0].prompt_ids)  # tools are in the prompt


def test_parts_names_and_unknown_fields(server, tokenizer):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "e"}]},
        {"role": "user", "content": "hello", "name": "writer"},
    ]
    extra = {"store": False, "user": "u", "metadata": {}, "parallel_tool_calls": False, "tool_choice": "auto"}
    assert post(server, {"messages": messages, "max_tokens": 2, **extra}, 1).status_code == 200
    assert server.sink.of(1)[0].prompt_ids.tolist() == tokenizer.encode_chat(MESSAGES)
