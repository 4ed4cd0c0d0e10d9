"""Which version is served: told to whoever asks or watches, also after a restart and for engines in the process."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import policy_pb2, policy_pb2_grpc
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.run.publisher import LocalPublisher
from lightning_jax.run.service import Service


def watch(target: str) -> tuple[grpc.Channel, Any]:
    channel = grpc.insecure_channel(target)
    return channel, policy_pb2_grpc.PolicyServiceStub(channel).WatchPolicy(policy_pb2.WatchPolicyRequest(), timeout=60)


def test_a_watcher_learns_of_what_an_earlier_process_published(store_url: str) -> None:
    with Store(store_url) as store:
        store.record_policy(types.PolicyVersion(3, "d3", 30)).result()
    with Store(store_url) as store:
        server = IngestServer(store)
        server.start()
        channel, answers = watch(server.target)
        assert next(answers).policy.version == 3
        store.record_policy(types.PolicyVersion(4, "d4", 40)).result()
        assert next(answers).policy == policy_pb2.PolicyVersion(version=4, digest="d4", step=40)
        channel.close()
        server.stop(grace=0.5)


def test_a_drain_sends_watchers_away_at_once(store: Store) -> None:
    server = IngestServer(store)
    server.start()
    store.record_policy(types.PolicyVersion(0, "d", 0)).result()
    channel, answers = watch(server.target)
    assert next(answers).policy.version == 0
    stopping = threading.Thread(target=server.stop, kwargs={"grace": 300.0})
    stopping.start()
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "watch the next one" in caught.value.details()
    stopping.join(60)
    assert not stopping.is_alive()
    channel.close()


class Engine:
    """The part of an engine that publishing needs."""

    policy_version = 5


class InProcess:
    """The part of a service that publishing needs, over a real store."""

    def __init__(self, store: Store) -> None:
        self.store, self.engine = store, Engine()

    def publish(self, params: Any, version: int) -> None:
        self.engine.policy_version = version


def test_versions_of_an_engine_in_this_process_are_told_too(
    store: Store, server: IngestServer, client: IngestClient
) -> None:
    service = InProcess(store)
    publisher = LocalPublisher(cast(Service, service))
    channel, answers = watch(server.target)
    assert next(answers).policy.version == 5  # what the engine began with
    publisher.publish(SimpleNamespace(), 6)
    assert next(answers).policy.version == 6
    found = client.get_policy()
    assert found is not None
    assert (found.version, found.step) == (6, 6)
    # A run that was resumed goes back, and its numbers come again for other weights.
    LocalPublisher(cast(Service, service)).publish(SimpleNamespace(), 4)
    assert next(answers).policy.version == 4
    channel.close()
