"""The worker: threads are kept, nothing of one attempt leaks into the next, a hung agent blocks nobody."""

from __future__ import annotations

import contextvars
import threading
from pathlib import Path

import pytest

from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.runner import CommandAgent, Runner
from lightning_jax.types import Rollout, SamplingDefaults
from tests.serve.conftest import eventually

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def rollout(number: int, timeout_s: float = 60.0) -> Rollout:
    return Rollout(f"ro-{number}", "task", number, "train", number, {"n": number}, SamplingDefaults(), 0, timeout_s)


@pytest.fixture
def client(tmp_path):
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        server = IngestServer(store, http_root="http://127.0.0.1:1")
        with IngestClient(f"127.0.0.1:{server.start()}") as client:
            yield client
        server.stop(grace=0.1)


def ended(client: IngestClient, count: int) -> dict[str, str]:
    found = client.rollout_statuses([f"ro-{n}" for n in range(count)])
    return {r.rollout_id: r.status for r in found if r.state == "sealed"}


def test_threads_are_kept_and_contexts_are_not(client):
    threads, colours, names = set(), [], []

    def agent(task_input, *, base_url, api_key, model):
        threads.add(threading.get_ident())
        names.append(threading.current_thread().name)
        colours.append(COLOUR.get())
        COLOUR.set("red")
        return {}

    client.enqueue([rollout(n) for n in range(12)])
    runner = Runner(client, agent, concurrency=2)
    runner.start()
    eventually(lambda: len(ended(client, 12)) == 12)
    runner.stop()
    assert set(ended(client, 12).values()) == {"succeeded"}
    assert len(threads) < 12
    assert colours == ["none"] * 12
    assert len(set(names)) == 12


def test_a_hung_agent_is_reported_and_replaced(client):
    hang = threading.Event()

    def agent(task_input, *, base_url, api_key, model):
        if task_input["n"] == 0:
            hang.wait(60)
        return {}

    client.enqueue([rollout(0, timeout_s=0.2), *(rollout(n) for n in range(1, 6))])
    runner = Runner(client, agent, concurrency=1)
    runner.start()
    try:
        eventually(lambda: len(ended(client, 6)) == 6)
    finally:
        hang.set()
        runner.stop()
    assert ended(client, 6) == {"ro-0": "timeout", **{f"ro-{n}": "succeeded" for n in range(1, 6)}}


def test_a_stop_ends_idle_threads_and_gives_up_on_a_hung_agent(client):
    hang, hanging = threading.Event(), threading.Event()

    def agent(task_input, *, base_url, api_key, model):
        if task_input["n"] == 0:
            hanging.set()
            hang.wait(60)
        return {}

    before = set(threading.enumerate())
    client.enqueue([rollout(n) for n in range(8)])
    runner = Runner(client, agent, concurrency=4)
    runner.start()
    eventually(lambda: len(ended(client, 8)) == 7 and hanging.is_set())
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("ro-")]) > 1
    runner.stop(timeout_s=0.5)
    assert ended(client, 8) == {"ro-0": "cancelled", **{f"ro-{n}": "succeeded" for n in range(1, 8)}}
    (hung,) = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith(("ro-", "runner-"))]
    hang.set()
    hung.join(20)
    assert not hung.is_alive()


def test_a_stop_lets_attempts_end(client):
    begun, release = threading.Event(), threading.Event()

    def agent(task_input, *, base_url, api_key, model):
        begun.set()
        return {"released": release.wait(20)}

    client.enqueue([rollout(0)])
    runner = Runner(client, agent, concurrency=1)
    runner.start()
    assert begun.wait(20)
    threading.Timer(1.5, release.set).start()  # by then nobody claims or watches any more
    runner.stop(timeout_s=20.0)
    assert ended(client, 1) == {"ro-0": "succeeded"}


def test_a_stop_kills_the_programs_of_attempts_that_hang(client, tmp_path):
    pid = tmp_path / "pid"
    client.enqueue([rollout(0)])
    runner = Runner(
        client, CommandAgent(f"bash -c 'echo $$ > {pid}.part; mv {pid}.part {pid}; sleep 600'"), concurrency=1
    )
    runner.start()
    eventually(pid.exists)
    runner.stop(timeout_s=0.2)
    eventually(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())
    assert ended(client, 1) == {"ro-0": "cancelled"}
