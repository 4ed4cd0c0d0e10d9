"""A store on disk, a server on a real socket, and the nouns the tests send through them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightning_jax import types
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from tests.ingest.otlp import Exporter
from tests.ingest.postgres import PostgresServer, binaries


class Clock:
    """Unix time that moves only when told."""

    def __init__(self) -> None:
        self.now_ns = 1_800_000_000 * 10**9

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


def make_rollout(name: str, max_attempts: int = 1) -> types.Rollout:
    return types.Rollout(
        rollout_id=name,
        task_id=f"task-{name}",
        sample=0,
        mode="train",
        seed=2**63 - 1,
        input={"question": f"who is {name}? ü"},
        sampling=types.SamplingDefaults(temperature=0.7, max_tokens=16),
        step=3,
        timeout_s=10.0,
        max_attempts=max_attempts,
    )


def make_call(attempt: types.Attempt, number: int, tokens: int = 5) -> types.Call:
    return types.Call(
        call_id=f"{attempt.attempt_id}-c{number}",
        rollout_id=attempt.rollout.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence=number,
        prompt_ids=np.arange(7, dtype=np.int32) + number,
        response_ids=np.arange(tokens, dtype=np.int32) * 3,
        rollout_logps=-np.arange(tokens, dtype=np.float32) / 7,
        sampling=types.SamplingParams(temperature=0.7, top_p=0.9, max_tokens=16, seed=2**32 - 1, stop=("END",)),
        policy_version=2,
        finish_reason="stop",
        agent_key="k1",
        started_ns=10,
        ended_ns=20,
        request={"messages": [{"role": "user", "content": "hi"}]},
        text="answer",
    )


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole session."""
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed here (Debian: apt-get install postgresql)")
    server = PostgresServer(folder)
    yield server
    server.remove()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh SQLite file."""
    return f"sqlite:///{tmp_path / 'store.sqlite'}"


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """A fresh schema on the PostgreSQL server."""
    return postgres.fresh(f"ljx_{uuid.uuid4().hex[:12]}")


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store, of each kind in turn."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store(store_url) as opened:
        yield opened


@pytest.fixture
def server(store: Store) -> Iterator[IngestServer]:
    running = IngestServer(store, http_root="http://127.0.0.1:9")
    running.start()
    yield running
    running.stop(grace=0.5)


@pytest.fixture
def client(server: IngestServer) -> Iterator[IngestClient]:
    with IngestClient(server.target, patience_s=10) as connected:
        yield connected


@pytest.fixture
def exporter(server: IngestServer) -> Iterator[Exporter]:
    opened = Exporter(server.target)
    yield opened
    opened.close()


def claim_one(store: Store, name: str = "r", max_attempts: int = 1) -> types.Attempt:
    store.enqueue_rollouts([make_rollout(name, max_attempts)]).result()
    return store.claim("worker", 1, 30.0, "http://127.0.0.1:9").result()[0]
