"""Calls and rewards have the bounds and the deadlines that exports have, over a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import call_pb2, call_pb2_grpc, reward_pb2, reward_pb2_grpc
from lightning_jax.ingest import convert
from lightning_jax.ingest.admission import ReceiverLimits
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import claim_one, make_call
from tests.ingest.otlp import Exporter, make_request, make_span


@pytest.fixture
def narrow(store: Store) -> Iterator[IngestServer]:
    """A server that lets little wait."""
    server = IngestServer(store, limits=ReceiverLimits(bytes=2000))
    server.start()
    yield server
    server.stop(grace=0.5)


def writes(channel: grpc.Channel, attempt: types.Attempt) -> dict[str, Callable[[float], Any]]:
    """An RPC of each kind, more than half the bound in bytes; called with a deadline in seconds."""
    call = convert.call_message(make_call(attempt, 0, tokens=200))
    reward = reward_pb2.Reward(reward_id="w" * 1500, rollout_id="r", value=1.0)
    return {
        "calls": lambda s: call_pb2_grpc.CallServiceStub(channel).RecordCalls(
            call_pb2.RecordCallsRequest(calls=[call]), timeout=s
        ),
        "rewards": lambda s: reward_pb2_grpc.RewardServiceStub(channel).RecordRewards(
            reward_pb2.RecordRewardsRequest(rewards=[reward]), timeout=s
        ),
    }


@pytest.mark.parametrize("kind", ["calls", "rewards"])
def test_what_exceeds_the_bound_is_told_to_come_back(narrow: IngestServer, store: Store, kind: str) -> None:
    attempt = claim_one(store)
    block = threading.Event()
    blocked = store._writer.submit(lambda transaction: block.wait(60))
    exporter = Exporter(narrow.target)
    waiting = threading.Thread(
        target=lambda: exporter.send(make_request(make_span(1, **{"x": "y" * 1500})), attempt.api_key)
    )
    waiting.start()
    end = time.monotonic() + 30
    while not narrow._receiver.counters()["pending_spans"]:
        assert time.monotonic() < end
        time.sleep(0.01)
    with grpc.insecure_channel(narrow.target) as channel:
        write = writes(channel, attempt)[kind]
        with pytest.raises(grpc.RpcError) as caught:
            write(30.0)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "google.rpc.retryinfo-bin" in dict(caught.value.trailing_metadata())
        block.set()
        blocked.result()
        waiting.join(30)
        write(30.0)
    exporter.close()
    counts = store.counts()
    assert (counts.spans, counts.calls + counts.rewards) == (1, 1)
    assert narrow._receiver.counters()["pending_bytes"] == 0


@pytest.mark.parametrize("kind", ["calls", "rewards"])
def test_a_deadline_before_any_commit_is_refused_and_stores_nothing(
    narrow: IngestServer, store: Store, kind: str
) -> None:
    attempt = claim_one(store)
    narrow._intake._pace._commit_s = 100.0  # a very slow disk
    with grpc.insecure_channel(narrow.target) as channel:
        write = writes(channel, attempt)[kind]
        with pytest.raises(grpc.RpcError) as caught:
            write(50.0)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "use a longer deadline" in caught.value.details()
        assert store.counts().calls + store.counts().rewards == 0
        write(500.0)
    assert store.counts().calls + store.counts().rewards == 1
