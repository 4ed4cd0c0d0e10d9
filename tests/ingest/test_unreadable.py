"""A store that cannot be read, over real sockets: every read asks to come back, health answers, and it recovers."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lightning_jax._proto.lightning.v1 import (
    call_pb2,
    call_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    reward_pb2,
    reward_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    transition_pb2,
    transition_pb2_grpc,
)
from lightning_jax.ingest import grants
from lightning_jax.ingest.references import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import claim_one
from tests.ingest.otlp import Exporter, make_request, make_span
from tests.ingest.postgres import PostgresServer, binaries
from tests.ingest.processes import ServerProcess

KEY = "ljx-that-memory-does-not-hold"


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


def reads(channel: grpc.Channel, exporter: Exporter) -> dict[str, Callable[[], Any]]:
    """Everything that has to look into the store before it can answer."""
    rollouts = rollout_pb2_grpc.RolloutServiceStub(channel)
    calls = call_pb2_grpc.CallServiceStub(channel)
    transitions = transition_pb2_grpc.TransitionServiceStub(channel)
    policies = policy_pb2_grpc.PolicyServiceStub(channel)
    rewards = reward_pb2_grpc.RewardServiceStub(channel)
    elsewhere = {ROLLOUT_ATTRIBUTE: "x", ATTEMPT_ATTRIBUTE: "x.1"}
    url = {"http.url": "http://127.0.0.1/rollout/x/attempt/x.1/v1/chat/completions"}
    return {
        "GetRollouts": lambda: rollouts.GetRollouts(rollout_pb2.GetRolloutsRequest(rollout_ids=["r"]), timeout=30),
        "ListCalls": lambda: calls.ListCalls(call_pb2.ListCallsRequest(attempt_id="r.1"), timeout=30),
        "GetPolicy": lambda: policies.GetPolicy(policy_pb2.GetPolicyRequest(), timeout=30),
        "StreamTransitions": lambda: next(
            transitions.StreamTransitions(transition_pb2.StreamTransitionsRequest(consumer="c"), timeout=30)
        ),
        "a key not seen before": lambda: rewards.RecordRewards(
            reward_pb2.RecordRewardsRequest(), metadata=bearer(KEY), timeout=30
        ),
        "Export by a key": lambda: exporter.send(make_request(make_span(1, trace=7)), KEY),
        "Export by resource": lambda: exporter.send(make_request(make_span(1, trace=8), resource=elsewhere)),
        "Export by URL": lambda: exporter.send(make_request(make_span(1, trace=9, **url))),
    }


def assert_all_ask_to_come_back(target: str) -> None:
    exporter = Exporter(target)
    with grpc.insecure_channel(target) as channel:
        for name, read in reads(channel, exporter).items():
            with pytest.raises(grpc.RpcError) as caught:
                read()
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE, (name, caught.value)
            trailers = dict(caught.value.trailing_metadata())
            delay = Duration.FromString(trailers["google.rpc.retryinfo-bin"][2:])
            assert 0 < delay.ToMilliseconds() <= 1000, name
    exporter.close()


def is_healthy(target: str) -> bool:
    with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def http_status(url: str, key: str) -> tuple[int, str | None]:
    """(status, Retry-After) of an empty export."""
    headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {key}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"", headers), timeout=30) as answer:
            return int(answer.status), None
    except urllib.error.HTTPError as error:
        return error.code, error.headers["retry-after"]


def until_http_answers(process: ServerProcess) -> None:
    """The HTTP port opens a moment after the gRPC port is told."""
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(process.http + "/health", timeout=30).close()
            return
        except urllib.error.URLError:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_postgresql_that_crashed_cannot_be_read_until_it_is_back() -> None:
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed here (Debian: apt-get install postgresql)")
    postgres = PostgresServer(folder)
    try:
        with ServerProcess(postgres.fresh("ljx")) as process:
            traces = process.http + "/v1/traces"
            until_http_answers(process)
            assert http_status(traces, "ljx-wrong")[0] == 401
            postgres.stop()
            assert_all_ask_to_come_back(process.target)
            assert is_healthy(process.target)
            status, retry_after = http_status(traces, KEY)
            assert status == 503
            assert retry_after is not None
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(process.http + "/metrics/ingest", timeout=30)
            postgres.start()
            with grpc.insecure_channel(process.target) as channel:
                rollouts = rollout_pb2_grpc.RolloutServiceStub(channel)
                assert not rollouts.GetRollouts(rollout_pb2.GetRolloutsRequest(rollout_ids=["r"])).rollouts
            assert http_status(traces, KEY)[0] == 401
    finally:
        postgres.remove()


def test_a_sqlite_file_that_cannot_be_opened_is_unavailable_until_it_can(sqlite_url: str, tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    with Store(sqlite_url, upkeep_s=1000.0) as store:
        server = IngestServer(store)
        server.start()
        attempt = claim_one(store)
        store._read_engine.dispose()  # what it holds open stays readable
        file.rename(tmp_path / "away")
        file.mkdir()
        assert_all_ask_to_come_back(server.target)
        assert is_healthy(server.target)
        file.rmdir()
        (tmp_path / "away").rename(file)
        assert [status.state for status in store.rollout_statuses([attempt.rollout.rollout_id])] == ["running"]
        server.stop(grace=0.5)


def test_a_slow_look_up_of_a_key_holds_nobody_else_up(
    server: IngestServer, store: Store, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on = threading.Event(), threading.Event()
    read = grants.read_by_hash
    looked: list[bytes] = []

    def slow(connection: Any, hashed: bytes) -> Any:
        looked.append(hashed)
        looking.set()
        assert go_on.wait(30)
        return read(connection, hashed)

    monkeypatch.setattr(grants, "read_by_hash", slow)
    codes: list[grpc.StatusCode] = []

    def send() -> None:
        try:
            exporter.send(make_request(make_span(1)), KEY)
        except grpc.RpcError as error:
            codes.append(error.code())

    sender = threading.Thread(target=send)
    sender.start()
    assert looking.wait(10)
    assert is_healthy(server.target)
    go_on.set()
    sender.join(30)
    send()  # what was nobody's once is not looked up again
    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 2
    assert len(looked) == 1
    assert store.counts().spans == 0
