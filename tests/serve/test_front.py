"""Refusals, limits, keys, and what the server tells of itself; calls around the end of an attempt and a publish."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import openai
import pytest

from lightning_jax.serve.app import ServeConfig, create_app
from lightning_jax.serve.http import HttpServer
from lightning_jax.serve.request_log import RequestLog
from tests.serve.conftest import ENGINE, MemorySink, eventually, policy, running, serving
from tests.serve.test_chat import MESSAGES, client, post


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": MESSAGES, "response_format": {"type": "json_schema"}}, "response_format"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        ({"messages": MESSAGES, "tool_choice": "any", "tools": [{"function": {"name": "f"}}]}, "tool_choice"),
        (
            {"messages": MESSAGES, "tool_choice": {"function": {"name": "g"}}, "tools": [{"function": {"name": "f"}}]},
            "tool_choice",
        ),
        (
            {
                "messages": MESSAGES,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wrong"}}},
            },
            "response_format",
        ),
        ({"messages": MESSAGES, "temperature": "hot"}, "temperature"),
        ({"messages": MESSAGES, "temperature": float("nan")}, "temperature"),
        ({"messages": MESSAGES, "n": 0}, "n"),
        ({"messages": MESSAGES, "max_tokens": True}, "max_tokens"),
        ({"messages": MESSAGES, "stop": [""]}, "stop"),
        ({"messages": MESSAGES, "logit_bias": {"5": 1}}, "logit_bias"),
        ({"messages": MESSAGES, "stream_options": 3}, "stream_options"),
        ({"messages": MESSAGES, "top_k": 20}, "top_k"),
        ({"messages": MESSAGES, "min_p": 0.1}, "min_p"),
        ({"messages": MESSAGES, "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"messages": MESSAGES, "repetition_penalty": True}, "repetition_penalty"),
        ({"messages": MESSAGES, "min_tokens": 4}, "min_tokens"),
        ({"messages": MESSAGES, "ignore_eos": True}, "ignore_eos"),
        ({"messages": MESSAGES, "guided_choice": ["a", "b"]}, "guided_choice"),
    ],
)
def test_refusals_name_the_parameter(server, body, param):
    response = post(server, body, 1)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert server.sink.of(1) == []


@pytest.mark.parametrize(
    ("path", "changes", "param"),
    [
        ("completions", {"echo": True}, "echo"),
        ("completions", {"best_of": True}, "best_of"),
        ("completions", {"best_of": 3}, "best_of"),
        ("completions", {"suffix": "x"}, "suffix"),
        ("completions", {"top_k": 5}, "top_k"),
        ("responses", {"top_k": 5}, "top_k"),
        ("responses", {"n": 2}, "n"),
        ("responses", {"presence_penalty": 1.0}, "presence_penalty"),
        ("responses", {"previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
def test_other_endpoints_refuse_as_much(server, path, changes, param):
    body = {"input": "x", "max_output_tokens": 2} if path == "responses" else {"prompt": "x", "max_tokens": 2}
    response = post(server, {**body, **changes}, 1, path)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert response.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_what_changes_nothing_is_served(server, path):
    given = {"messages": MESSAGES, "prompt": "x", "input": "x"}
    wanted = {"chat/completions": "messages", "completions": "prompt", "responses": "input"}[path]
    harmless = {
        "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 0, "ignore_eos": False, "echo": False,
        "best_of": 1, "suffix": None, "guided_json": None, "presence_penalty": 0, "n": 1, "metadata": {"a": "b"},
        "user": "me", "store": True, "service_tier": "auto", "truncation": "auto", "reasoning": {"effort": "low"},
    }  # fmt: skip
    limit = {"max_output_tokens" if path == "responses" else "max_tokens": 2}
    assert post(server, {wanted: given[wanted], **harmless, **limit}, 1, path).status_code == 200
    assert len(server.sink.of(1)[0].response_ids) <= 2


def test_bad_bodies(server):
    assert post(server, b"{", 1).status_code == 400
    assert post(server, b"[1]", 1).status_code == 400
    assert post(server, b"[" * 100_000, 1).status_code == 400
    assert post(server, b"\xff\xfe", 1).status_code == 400
    assert (
        post(server, {"messages": [{"role": "user", "content": "\ud800 lone"}], "max_tokens": 1}, 1).status_code == 200
    )
    with client(server, 1, max_retries=0) as api, pytest.raises(openai.BadRequestError) as error:
        api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 500}])
    assert error.value.code == "context_length_exceeded"


def test_body_limit(engine, tokenizer):
    with serving(engine, tokenizer, max_body_bytes=1000) as server:
        assert post(server, b"x" * 1001, 1).status_code == 413
        assert httpx.post(f"{server.root}/v1/chat/completions", content=iter([b"x" * 600] * 3)).status_code == 413


def test_who_may_call(server, engine, tokenizer):
    body = {"messages": MESSAGES, "max_tokens": 2}
    url = f"{server.base_url(1)}/chat/completions"
    plain = f"{server.root}/v1/chat/completions"

    def status(url: str, key: str | None) -> int:
        return httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"} if key else {}).status_code

    assert status(url, None) == 401
    assert status(url, "ljx-wrong") == 401
    assert status(url, "ljx-key-2") == 403
    assert status(plain, "ljx-key-2") == 200  # the key alone says whose call it is
    assert len(server.sink.of(2)) == 1
    assert status(plain, "ljx-wrong") == 401
    assert status(plain, None) == status(plain, "adm") == status(plain, "none") == 200
    assert len(server.sink.calls) == 1  # calls of no rollout are not recorded
    server.sink.end(1)
    assert status(url, "ljx-key-1") == 410
    with serving(engine, tokenizer, anonymous=False, admin_key="adm") as strict:
        plain = f"{strict.root}/v1/chat/completions"
        assert [status(plain, k) for k in (None, "none", "adm")] == [401, 401, 200]
    with serving(engine, tokenizer, open=True) as dev:
        assert status(f"{dev.base_url(1)}/chat/completions", None) == 200
        assert status(f"{dev.root}/rollout/ro-1/attempt/at-9/v1/chat/completions", None) == 404
        assert len(dev.sink.of(1)) == 1


def test_attempt_that_ends_while_it_is_answered(server):
    server.sink.hold = True
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, server, {"messages": MESSAGES, "max_tokens": 3}, 4)
        eventually(lambda: server.sink.held)
        future, _ = server.sink.held.pop()
        server.sink.end(4)
        error = type("AttemptEnded", (Exception,), {})("at-4 has ended")
        future.set_exception(error)
        assert waiting.result(20).status_code == 410


class StoreUnavailable(Exception):
    """As the store raises it."""


def test_whatever_goes_wrong_is_error_json_counted_and_logged(engine, tokenizer, tmp_path, monkeypatch):
    log = RequestLog(tmp_path)
    sink = MemorySink()
    sink.add(1)
    http = HttpServer(create_app(engine, tokenizer, sink, ServeConfig(), log=log))
    root = f"http://127.0.0.1:{http.start()}"
    body = {"messages": MESSAGES, "max_tokens": 2}

    def ask() -> httpx.Response:
        headers = {"authorization": "Bearer ljx-key-1"}
        return httpx.post(f"{root}/rollout/ro-1/attempt/at-1/v1/chat/completions", json=body, headers=headers)

    try:
        for error, status in ((ZeroDivisionError("oops"), 500), (StoreUnavailable("disk full"), 503)):
            with monkeypatch.context() as patch:
                patch.setattr(sink, "list_calls", lambda attempt_id, error=error: throw(error))
                response = ask()
            assert response.status_code == status
            assert response.json()["error"]["type"] == "server_error"
            assert str(error) in response.json()["error"]["message"]
            if status == 503:
                assert float(response.headers["retry-after"]) <= 1
            assert f'status="{status}"}} 1.0' in httpx.get(f"{root}/metrics").text
            lines = [json.loads(line) for line in log.path.read_text().splitlines()]
            assert [line["error"] for line in lines if line["status"] == status] == [repr(error)]
        assert ask().status_code == 200
    finally:
        http.stop()
        log.close()


def throw(error: Exception):
    raise error


def test_looking_a_cold_key_up_holds_nobody_else_up(server, monkeypatch):
    """A key that memory doesn't hold waits for the database in a thread; others are served meanwhile."""
    looking, found = threading.Event(), threading.Event()
    authorize = server.sink.authorize

    def slow(key: str):
        if key in server.sink.cold:
            looking.set()
            assert found.wait(20)
        return authorize(key)

    server.sink.cold.add("ljx-key-2")
    monkeypatch.setattr(server.sink, "authorize", slow)
    body = {"messages": MESSAGES, "max_tokens": 2}
    with ThreadPoolExecutor(1) as pool:
        cold = pool.submit(post, server, body, 2)
        assert looking.wait(20)
        assert post(server, body, 3).status_code == 200
        assert not cold.done()
        found.set()
        assert cold.result(20).status_code == 200


def test_a_speaker_keeps_its_key_where_it_may_not_call_its_tools(server):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for choice in ("auto", "none"):
        body = {"messages": MESSAGES, "max_tokens": 2, "tools": tools, "tool_choice": choice}
        assert post(server, body, 6).status_code == 200
    assert post(server, {"messages": MESSAGES, "max_tokens": 2}, 6).status_code == 200
    with_tools, without_calls, without_tools = server.sink.of(6)
    assert with_tools.agent_key == without_calls.agent_key != without_tools.agent_key


def test_models_health_metrics(server):
    assert post(server, {"messages": MESSAGES, "max_tokens": 2}, 1).status_code == 200
    with client(server, 1) as api:
        assert [m.id for m in api.models.list()] == ["policy"]
    for method in ("GET", "POST"):
        assert httpx.request(method, f"{server.root}/healthcheck").json()["status"] == "ok"
    text = httpx.get(f"{server.root}/metrics").text
    assert "ljx_engine_generated_tokens_total" in text
    assert 'ljx_http_answers_total{endpoint="chat",status="200"} 1.0' in text
    assert httpx.get(f"{server.root}/nowhere").status_code == 404


def test_full_queue_is_429_with_a_short_wait(tokenizer):
    with running(replace(ENGINE, slots=1, max_queue=1)) as engine, serving(engine, tokenizer) as server:
        body = {"messages": MESSAGES, "max_tokens": 100}
        with ThreadPoolExecutor(12) as pool:
            responses = list(pool.map(lambda i: post(server, body, i % 6), range(12)))
        refused = [r for r in responses if r.status_code == 429]
        assert refused
        assert float(refused[0].headers["retry-after"]) <= 1
        assert len(server.sink.calls) == 12 - len(refused)
        for number in range(6):  # a refused call took no number
            assert [c.sequence for c in server.sink.of(number)] == list(range(len(server.sink.of(number))))


def test_a_stream_held_by_a_publish_is_kept_alive_and_then_answered(tokenizer):
    with running() as engine, serving(engine, tokenizer, keepalive_s=0.05) as server:
        publish, release, holding = engine._device.replace_params, threading.Event(), threading.Event()

        def slow(params):
            holding.set()
            assert release.wait(60)
            publish(params)

        engine._device.replace_params = slow
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(engine.publish, policy(1), 1)
            assert holding.wait(60)
            url = f"{server.base_url(0)}/chat/completions"
            body = {"messages": MESSAGES, "max_tokens": 4, "stream": True}
            with httpx.stream("POST", url, json=body, headers={"authorization": "Bearer ljx-key-0"}) as response:
                comments, events = 0, []
                for line in response.iter_lines():
                    comments += line.startswith(":")
                    events += [line[6:]] if line.startswith("data: ") else []
                    if comments == 3:
                        release.set()
            publishing.result(60)
        assert comments >= 3
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] in ("stop", "length")
        assert server.sink.of(0)[0].policy_version == 1


def test_calls_during_a_publish_wait_for_the_new_version(tokenizer):
    with running() as engine, serving(engine, tokenizer, keepalive_s=0.05) as server:
        with ThreadPoolExecutor(9) as pool:
            body = {"messages": MESSAGES, "max_tokens": 120}
            before = [pool.submit(post, server, body, i) for i in range(4)]
            eventually(lambda: engine.metrics()["prompt_tokens_total"] == 4 * len(tokenizer.encode_chat(MESSAGES)))
            publishing = pool.submit(engine.publish, policy(1), 1)
            eventually(lambda: engine._publishing is not None or publishing.done())
            after = [pool.submit(post, server, body, i) for i in range(4, 8)]
            assert [f.result(60).status_code for f in before + after] == [200] * 8
            publishing.result(60)
        assert {c.policy_version for i in range(4) for c in server.sink.of(i)} == {0}
        assert {c.policy_version for i in range(4, 8) for c in server.sink.of(i)} <= {0, 1}
        post(server, {"messages": MESSAGES, "max_tokens": 2}, 0)
        assert server.sink.of(0)[-1].policy_version == 1
        assert np.all(server.sink.of(0)[-1].rollout_logps <= 0)
