"""A server killed between a call's commit and its answer: the client's retry gets that answer, and one call counts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
import openai
import pytest

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import assemble
from lightning_jax.ingest.client import IngestClient
from lightning_jax.types import Outcome, Rollout, SamplingDefaults
from tests.serve.conftest import eventually

ROOT = Path(__file__).parents[2]
MESSAGES = [{"role": "user", "content": "hello"}]


@contextmanager
def server(url: str, port: int, *words: str) -> Iterator[tuple[subprocess.Popen[str], str, IngestClient]]:
    """A server process, killed at the end: (process, its root, a client of its store)."""
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
    command = [sys.executable, "-m", "tests.serve.killable_server", url, str(port), *words]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **compiled}, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert process.stdout is not None
        root, grpc_port = process.stdout.readline().split()
        with IngestClient(f"127.0.0.1:{grpc_port}") as client:
            yield process, root, client
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_after_a_kill_gets_the_recorded_answer(tmp_path: Path, stream: bool) -> None:
    url, port = f"sqlite:///{tmp_path / 'store.sqlite'}", free_port()
    options = {"model": "m", "messages": MESSAGES, "max_tokens": 8, "stream": stream}

    def ask(base_url: str, key: str) -> tuple[str, str]:
        with openai.OpenAI(base_url=base_url, api_key=key, max_retries=60, timeout=300) as api:
            if not stream:
                answer = api.chat.completions.create(**options)  # type: ignore[call-overload]
                return answer.id, answer.choices[0].message.content
            chunks = list(api.chat.completions.create(**options))  # type: ignore[call-overload]
            return chunks[0].id, "".join(c.choices[0].delta.content or "" for c in chunks)

    with ThreadPoolExecutor(1) as pool:
        with server(url, port, "hold") as (process, _, client):
            client.enqueue([Rollout("ro", "task", 0, "train", 7, {}, SamplingDefaults())])
            (attempt,) = client.claim("worker", 1, 600.0)
            first = pool.submit(ask, attempt.base_url, attempt.api_key)
            eventually(lambda: client.list_calls(attempt.attempt_id), 60)
            (recorded,) = client.list_calls(attempt.attempt_id)
            assert recorded.delivered_ns == 0
            assert not first.done()
            process.send_signal(signal.SIGKILL)
            process.wait()
        with server(url, port) as (_, _, client):
            if not stream:
                assert first.result(120) == (f"chatcmpl-{recorded.call_id}", recorded.text)
            else:  # its headers were out; a stream that broke is not asked for again
                assert first.exception(120) is not None
            (call,) = client.list_calls(attempt.attempt_id)
            assert call.call_id == recorded.call_id
            if not stream:
                eventually(lambda: client.list_calls(attempt.attempt_id)[0].delivered_ns > 0)
            else:
                assert call.delivered_ns < 0
            assert client.complete(attempt.attempt_id, Outcome("succeeded")) == "sealed"
            sealed = next(client.sealed("test"))
    assembled = assemble(sealed, AgentNaming.of({}))
    assert len(assembled.trajectory.transitions) == (0 if stream else 1)
    assert [q.reason for q in assembled.quarantined] == (["undelivered"] if stream else [])


def test_what_cannot_be_given_again_is_superseded(tmp_path: Path) -> None:
    """Alternatives of tokens are not stored: the retry gets a new sample, and only that one counts."""
    url, port = f"sqlite:///{tmp_path / 'store.sqlite'}", free_port()
    options = {"model": "m", "messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    with ThreadPoolExecutor(1) as pool, server(url, port, "hold") as (process, _, client):
        client.enqueue([Rollout("ro", "task", 0, "train", 7, {}, SamplingDefaults())])
        (attempt,) = client.claim("worker", 1, 600.0)
        with openai.OpenAI(base_url=attempt.base_url, api_key=attempt.api_key, max_retries=60) as api:
            first = pool.submit(lambda: api.chat.completions.create(**options))
            eventually(lambda: client.list_calls(attempt.attempt_id), 60)
            (recorded,) = client.list_calls(attempt.attempt_id)
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(0.1)
            with server(url, port) as (_, _, client):
                answer = first.result(120)
                eventually(lambda: any(c.superseded_by for c in client.list_calls(attempt.attempt_id)))
                client.complete(attempt.attempt_id, Outcome("succeeded"))
                sealed = next(client.sealed("test"))
    assembled = assemble(sealed, AgentNaming.of({}))
    (transition,) = assembled.trajectory.transitions
    assert answer.id == f"chatcmpl-{transition.call_id}" != f"chatcmpl-{recorded.call_id}"
    assert [(q.identity, q.reason) for q in assembled.quarantined] == [(recorded.call_id, "superseded")]
