"""A server on a real socket, over SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as opened:
        yield opened


@pytest.fixture
def server(store: Store) -> Iterator[IngestServer]:
    running = IngestServer(store, http_root="http://127.0.0.1:9")
    running.start()
    yield running
    running.stop(grace=0.5)


@pytest.fixture
def client(server: IngestServer) -> Iterator[IngestClient]:
    with IngestClient(server.target, patience_s=0.2) as connected:
        yield connected
