"""A retry is the same call; an unmarked repeat is a new one; a client that leaves may come back."""

from __future__ import annotations

import json
import socket
import threading
import time

import httpx
import openai
import pytest

from lightning_jax.serve.retries import RetryTable, retry_key
from tests.serve.conftest import Server, eventually, serving

BODY = {"messages": [{"role": "user", "content": "again"}], "max_tokens": 12, "model": "m"}


def post(server: Server, number: int = 0, body=None, **headers) -> httpx.Response:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        f"{server.base_url(number)}/chat/completions",
        content=json.dumps(body or BODY),
        headers={"authorization": f"Bearer ljx-key-{number}", **headers},
        timeout=60,
    )


def leave_early(server: Server, number: int = 0, body=None) -> None:
    """Send a request and close the connection before the answer."""
    host, port = server.root.removeprefix("http://").split(":")
    raw = json.dumps(body or BODY).encode()
    path = server.base_url(number).removeprefix(server.root) + "/chat/completions"
    lines = ["host: x", f"authorization: Bearer ljx-key-{number}", f"content-length: {len(raw)}"]
    head = "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""])
    before = server.engine.metrics()["prompt_tokens_total"]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + raw)
        eventually(lambda: server.engine.metrics()["prompt_tokens_total"] > before)


def test_marked_repeat_is_replayed(server):
    first = post(server)
    again = post(server, x_stainless_retry_count="1")
    assert first.content == again.content
    (call,) = server.sink.of(0)
    eventually(lambda: server.sink.delivery(call.call_id) > 0)
    new = post(server, x_stainless_retry_count="0")
    assert new.json()["id"] != first.json()["id"]
    assert len(server.sink.of(0)) == 2
    assert post(server, body={**BODY, "max_tokens": 13}, x_stainless_retry_count="1").json()["id"] != first.json()["id"]
    assert post(server, number=1, x_stainless_retry_count="1").json()["id"] != first.json()["id"]


def test_idempotency_key(server):
    answers = [
        post(server, idempotency_key="k1"),
        post(server, idempotency_key="k1"),
        post(server, idempotency_key="k2"),
    ]
    ids = [a.json()["id"] for a in answers]
    assert ids[0] == ids[1] != ids[2]
    assert len(server.sink.of(0)) == 2


def test_timed_out_client_gets_the_generation_under_way(server):
    server.sink.hold = True  # the first answer cannot end before the client has given up on it
    with openai.OpenAI(base_url=server.base_url(0), api_key="ljx-key-0", timeout=0.4, max_retries=2) as api:
        timer = threading.Timer(0.6, server.sink.release)
        timer.start()
        try:
            answer = api.chat.completions.create(**BODY)
        finally:
            timer.join()
    assert len(server.sink.of(0)) == 1
    assert server.sink.of(0)[0].text == answer.choices[0].message.content
    assert server.sink.of(0)[0].finish_reason in ("stop", "length")


def test_stream_is_replayed_whole(server):
    body = {**BODY, "stream": True}
    first = post(server, body=body)
    again = post(server, body=body, x_stainless_retry_count="2")

    def text(response):
        events = [json.loads(x[6:]) for x in response.text.split("\n\n") if x.startswith("data: {")]
        return "".join(e["choices"][0]["delta"].get("content") or "" for e in events)

    assert text(first) == text(again)
    assert first.headers["x-ljx-generation-id"] == again.headers["x-ljx-generation-id"]
    assert len(server.sink.of(0)) == 1


def test_nobody_comes_back(server):
    leave_early(server, 2, {**BODY, "max_tokens": 140})
    eventually(lambda: server.sink.of(2))
    (call,) = server.sink.of(2)
    assert call.finish_reason == "abort"  # recorded, and marked as never delivered
    later = post(server, 2, {**BODY, "max_tokens": 140}, x_stainless_retry_count="1")
    assert later.json()["id"] != f"chatcmpl-{call.call_id}"


def test_retry_within_the_grace_time_gets_the_orphan(engine, tokenizer):
    body = {**BODY, "max_tokens": 140}
    with serving(engine, tokenizer, disconnect_grace_s=60) as server:
        leave_early(server, 3, body)
        time.sleep(0.1)
        answer = post(server, 3, body, x_stainless_retry_count="1")
        (call,) = server.sink.of(3)
    assert answer.json()["id"] == f"chatcmpl-{call.call_id}"
    assert call.finish_reason in ("stop", "length")


def test_a_client_that_leaves_before_the_bytes_got_nothing(server):
    """It leaves while its call commits: recorded, and told to be undelivered until a retry takes it."""
    server.sink.hold = True
    body = {**BODY, "max_tokens": 5}
    host, port = server.root.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    path = server.base_url(5).removeprefix(server.root) + "/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ljx-key-5\r\ncontent-length: {len(raw)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + raw)
        eventually(lambda: server.sink.held)
    time.sleep(0.2)  # the server learns that it left
    server.sink.release()
    eventually(lambda: server.sink.of(5) and server.sink.delivery(server.sink.of(5)[0].call_id) < 0)
    (call,) = server.sink.of(5)
    answer = post(server, 5, body, x_stainless_retry_count="1")
    assert answer.json()["id"] == f"chatcmpl-{call.call_id}"
    eventually(lambda: server.sink.delivery(call.call_id) > 0)
    assert len(server.sink.of(5)) == 1


@pytest.mark.parametrize("n", [1, 2])
def test_an_answer_made_again_from_the_record_has_the_same_bytes(engine, tokenizer, n):
    """As after a restart: a second app over the same record knows nothing but what was stored."""
    with serving(engine, tokenizer) as first, serving(engine, tokenizer) as second:
        body = {**BODY, "n": n, "logprobs": True, "return_token_ids": True, "stop": ["e"]}
        told = post(first, 1, body)
        second.sink.calls = list(first.sink.calls)
        again = post(second, 1, body, x_stainless_retry_count="1")
        assert told.content == again.content
        assert len(second.sink.of(1)) == n
        eventually(lambda: all(second.sink.delivery(c.call_id) > 0 for c in second.sink.of(1)))
        assert post(second, 1, body).json()["id"] != told.json()["id"]  # without a mark: a new sample


class Fake:
    def __init__(self, waiters=0, delivered=False, failed=False):
        self.waiters, self.delivered, self.failed = waiters, delivered, failed


def test_table_prefers_the_orphan_and_forgets():
    now = [0.0]
    table: RetryTable[Fake] = RetryTable(ttl_s=10, capacity=2, clock=lambda: now[0])
    key, marked = retry_key("a", "/p", b"{}", {"x-stainless-retry-count": "1"})
    assert marked
    delivered, orphan, waited = Fake(delivered=True), Fake(), Fake(waiters=1)
    for answer in (orphan, delivered, waited):
        table.add(key, answer)
    assert table.find(key) is orphan
    orphan.failed = True
    assert table.find(key) is waited
    for name in ("b", "c"):
        table.add(retry_key(name, "/p", b"{}", {})[0], Fake())
    assert len(table) == 2
    assert table.find(key) is None
    now[0] = 11.0
    assert table.find(retry_key("b", "/p", b"{}", {})[0]) is None
    assert not retry_key("a", "/p", b"{}", {"x-stainless-retry-count": "zero"})[1]
