"""Attempts that the service ended are stopped by whoever runs them; a beat that fails is followed by another."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_jax import types
from lightning_jax.client import LightningClient
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.runner import CommandAgent, Runner

SLEEP = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def make_rollout(name: str) -> types.Rollout:
    return types.Rollout(name, f"task-{name}", 0, "train", 1, {}, types.SamplingDefaults(), timeout_s=600.0)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_program_of_a_cancelled_rollout_is_killed_and_makes_room(
    client: IngestClient, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    agent = CommandAgent(shlex.join([sys.executable, "-c", SLEEP, str(file)]))
    runner = Runner(client, agent, concurrency=1, lease_s=0.6)
    client.enqueue([make_rollout("a")])
    runner.start()
    until(lambda: file.exists() and bool(file.read_text()))
    pid = int(file.read_text())
    assert is_alive(pid)
    client.cancel(["a"])
    until(lambda: not is_alive(pid))
    file.unlink()
    client.enqueue([make_rollout("b")])  # its place is free again
    until(file.exists)
    assert [status.state for status in store.rollout_statuses(["b"])] == ["running"]
    runner.stop(timeout_s=0.5)
    assert [sealed.outcome.status for sealed in store.sealed_after(0)] == ["cancelled", "cancelled"]


def test_beats_that_fail_do_not_end_a_lease(
    client: IngestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []
    beat = client.heartbeat

    def flaky(attempt_ids: Any) -> list[str]:
        if len(failed) < 2:
            failed.append(1)
            raise StoreUnavailable("restarting")
        return beat(attempt_ids)

    monkeypatch.setattr(client, "heartbeat", flaky)
    go_on = threading.Event()

    def agent(task: Any, **_: Any) -> dict[str, Any]:
        assert go_on.wait(60)
        return {}

    runner = Runner(client, agent, concurrency=1, lease_s=3.0)
    client.enqueue([make_rollout("a")])
    runner.start()
    until(lambda: len(failed) == 2)
    time.sleep(4.0)  # longer than the lease: only beats can hold it
    go_on.set()
    until(lambda: bool(store.sealed_after(0)))
    assert store.sealed_after(0)[0].outcome.status == "succeeded"
    runner.stop(timeout_s=0.5)


def test_a_rollout_in_a_program_of_ones_own_learns_that_it_ended(
    server: IngestServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LightningClient("http://127.0.0.1:9", grpc_target=server.target) as client:
        failed: list[int] = []
        beat = client.ingest.heartbeat

        def flaky(attempt_ids: Any) -> list[str]:
            if not failed:
                failed.append(1)
                raise StoreUnavailable("restarting")
            return beat(attempt_ids)

        monkeypatch.setattr(client.ingest, "heartbeat", flaky)
        with client.rollout({"q": 1}, lease_s=1.5) as rollout:
            until(lambda: bool(failed))
            assert not rollout.ended
            store.cancel([rollout.rollout_id]).result()
            until(lambda: rollout.ended)
        assert store.sealed_after(0)[0].outcome.status == "cancelled"


def test_the_end_of_a_rollout_sends_its_spans_first(server: IngestServer, store: Store) -> None:
    with LightningClient("http://127.0.0.1:9", grpc_target=server.target) as client:
        with client.rollout({"q": 1}) as rollout:
            provider = client.trace(api_key=rollout.api_key)
            provider.get_tracer("agent").start_span("the last thing it did").end()
        (sealed,) = store.sealed_after(0)
        assert [span.name for span in sealed.spans] == ["the last thing it did"]
        provider.shutdown()
