"""The services over real sockets: the queue, keys, the resumable stream, uploads of weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import policy_pb2, policy_pb2_grpc
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import AttemptEnded, IdentityConflict, StoreUnavailable, UnknownAttempt
from lightning_jax.ingest.service import SERVICES, IngestServer
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import claim_one, make_call, make_rollout

DONE = types.Outcome("succeeded", {"answer": 42})


def test_one_turn_of_the_circle(client: IngestClient) -> None:
    assert client.enqueue([make_rollout("a"), make_rollout("b")]) == 2
    first, second = client.claim("w", 5, 30.0)
    assert first.rollout == make_rollout("a")
    assert first.base_url == "http://127.0.0.1:9/rollout/a/attempt/a.1/v1"
    assert client.heartbeat([first.attempt_id, second.attempt_id]) == []
    call = make_call(first, 0)
    assert client.record_calls([call]) == {}
    assert client.record_rewards([types.Reward("w1", "a", "", None, {"exact": 1.0})]) == 1
    assert client.complete(first.attempt_id, DONE) == "sealed"
    late = client.record_calls([make_call(first, 1), make_call(second, 0)])
    assert list(late) == ["a.1-c1"]
    assert "ended" in late["a.1-c1"]
    assert client.cancel(["b"], "enough") == 1
    sealed = list(client.sealed("learner", idle_s=0.5))
    assert [(s.rollout.rollout_id, s.outcome) for s in sealed] == [
        ("a", DONE),
        ("b", types.Outcome("cancelled", {}, "enough")),
    ]
    assert sealed[0].calls[0].response_ids.tobytes() == call.response_ids.tobytes()
    assert sealed[0].calls[0].rollout_logps.tobytes() == call.rollout_logps.tobytes()
    assert sealed[0].rewards[0].components == {"exact": 1.0}
    assert [(s.rollout_id, s.state, s.status) for s in client.rollout_statuses(["b", "x"])] == [
        ("b", "sealed", "cancelled")
    ]
    assert [found.call_id for found in client.list_calls("b.1")] == ["b.1-c0"]


def test_a_waiting_claim_gets_a_rollout_when_it_is_enqueued(client: IngestClient) -> None:
    claimed: list[types.Attempt] = []
    waiting = threading.Thread(target=lambda: claimed.extend(client.claim("w", 1, 30.0, wait_s=30.0)))
    waiting.start()
    time.sleep(0.2)
    client.enqueue([make_rollout("a")])
    waiting.join(timeout=20)
    assert [attempt.attempt_id for attempt in claimed] == ["a.1"]
    assert client.claim("w", 1, 30.0, wait_s=0.1) == []


def test_errors_come_back_as_what_they_are(client: IngestClient) -> None:
    client.enqueue([make_rollout("a")])
    client.claim("w", 1, 30.0)
    client.complete("a.1", DONE)
    with pytest.raises(UnknownAttempt, match=r"b\.1"):
        client.complete("b.1", DONE)
    with pytest.raises(AttemptEnded):
        client.record_rewards([types.Reward("w", "a", "a.1", 1.0)])
    with pytest.raises(ValueError, match="URL"):
        client.enqueue([make_rollout("a b")])
    with pytest.raises(ValueError, match="lease_s"):
        client.claim("w", 1, 0.0)
    with pytest.raises(IdentityConflict):
        client.enqueue([replace(make_rollout("a"), seed=5)])


@pytest.fixture
def guarded(store: Store) -> Iterator[IngestServer]:
    running = IngestServer(store, http_root="http://127.0.0.1:9", admin_key="admin-secret")
    running.start()
    yield running
    running.stop(grace=0.5)


@pytest.mark.parametrize("key", [None, "wrong", "ljx-wrong"])
def test_without_the_admin_key_nothing_works(guarded: IngestServer, key: str | None) -> None:
    with IngestClient(guarded.target, key) as client, pytest.raises(PermissionError, match="bearer"):
        client.enqueue([make_rollout("a")])


def test_an_attempts_key_writes_its_own_rewards_and_nothing_else(guarded: IngestServer, store: Store) -> None:
    mine, other = claim_one(store, "mine"), claim_one(store, "other")
    with IngestClient(guarded.target, "admin-secret") as admin:
        assert admin.record_rewards([types.Reward("w0", "other", "", 1.0)]) == 1
    with IngestClient(guarded.target, mine.api_key) as agent:
        assert agent.record_rewards([types.Reward("w1", "", "", 1.0)]) == 1
        assert agent.record_rewards([types.Reward("w2", "mine", mine.attempt_id, 1.0)]) == 1
        for forbidden in (
            lambda: agent.record_rewards([types.Reward("w3", "other", "", 1.0)]),
            lambda: agent.record_rewards([types.Reward("w3", "", other.attempt_id, 1.0)]),
            lambda: agent.record_calls([make_call(mine, 0)]),
            lambda: agent.complete(mine.attempt_id, DONE),
            lambda: next(agent.sealed("x")),
            lambda: agent.publish_policy(types.PolicyVersion(0, "d", 0), b""),
        ):
            with pytest.raises(PermissionError):
                forbidden()
    assert store.counts().rewards == 3


def test_a_host_beyond_loopback_needs_a_key(store: Store) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(ValueError, match="set an admin_key, or keys with scopes, or listen on"):
            IngestServer(store, host=host)
    for host in ("localhost", "127.0.0.5", "::1"):
        IngestServer(store, host=host)


def test_the_stream_resumes_where_it_was_over_a_restart_of_the_server(store: Store) -> None:
    def seal(name: str) -> None:
        store.complete(claim_one(store, name).attempt_id, DONE).result()

    first = IngestServer(store)
    port = first.start()
    with IngestClient(first.target, patience_s=30) as client:
        stream = client.sealed("learner")
        seal("a")
        seal("b")
        assert next(stream).rollout.rollout_id == "a"
        cursor = next(stream).cursor
        first.stop(grace=0.5)
        seal("c")
        second = IngestServer(store, port=port)
        second.start()
        assert next(stream).rollout.rollout_id == "c"
        seal("d")
        assert next(stream).rollout.rollout_id == "d"
        assert client.ack("learner", cursor) == cursor
        # A new consumer process goes on after what was acknowledged, or where it says.
        assert [s.rollout.rollout_id for s in client.sealed("learner", idle_s=0.5)] == ["c", "d"]
        assert [s.rollout.rollout_id for s in client.sealed("learner", 0, idle_s=0.5)] == ["a", "b", "c", "d"]
        stream.close()
        second.stop(grace=0.5)
        with pytest.raises(StoreUnavailable), IngestClient(second.target, patience_s=0.2) as lonely:
            lonely.ack("learner", 1)


def test_a_stop_does_not_wait_for_long_polls_and_streams(store: Store) -> None:
    server = IngestServer(store)
    server.start()
    with IngestClient(server.target, patience_s=0) as client:
        ended = threading.Event()

        def follow() -> None:
            with pytest.raises(StoreUnavailable):
                next(client.sealed("learner"))
            ended.set()

        threads = [
            threading.Thread(target=follow),
            threading.Thread(target=lambda: client.claim("w", 1, 30.0, wait_s=60)),
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        server.stop(grace=60)
        for thread in threads:
            thread.join(timeout=20)
        assert ended.is_set()
        assert not any(thread.is_alive() for thread in threads)


@pytest.fixture
def uploads(store: Store) -> Iterator[tuple[IngestServer, list[tuple[types.PolicyVersion, bytes]]]]:
    received: list[tuple[types.PolicyVersion, bytes]] = []

    def take(policy: types.PolicyVersion, data: bytes) -> None:
        if policy.digest == "refused":
            raise ValueError("layer 3 has the shape of another model")
        received.append((policy, data))

    server = IngestServer(store, on_policy=take)
    server.start()
    yield server, received
    server.stop(grace=0.5)


def test_weights_arrive_whole_and_once(uploads: tuple[IngestServer, list[tuple[types.PolicyVersion, bytes]]]) -> None:
    server, received = uploads
    data = bytes(range(256)) * 12_345  # 3.2 MB: several chunks, the last one short
    policy = types.PolicyVersion(1, "digest-1", 10)
    with IngestClient(server.target) as client:
        assert client.get_policy() is None
        assert client.publish_policy(policy, data)
        assert not client.publish_policy(policy, data)
        assert received == [(policy, data)]
        assert client.get_policy() == policy
        with pytest.raises(IdentityConflict, match=r"digest-1 .* digest-2"):
            client.publish_policy(types.PolicyVersion(1, "digest-2", 10), data)
        with pytest.raises(ValueError, match="layer 3"):
            client.publish_policy(types.PolicyVersion(2, "refused", 11), data)
        assert client.get_policy() == policy
        assert client.publish_policy(types.PolicyVersion(2, "mended", 11), data)


def test_damaged_uploads_never_reach_the_policy_server(
    uploads: tuple[IngestServer, list[tuple[types.PolicyVersion, bytes]]],
) -> None:
    server, received = uploads
    header = policy_pb2.PolicyHeader(
        policy=policy_pb2.PolicyVersion(version=1, digest="d"), format="safetensors", size_bytes=4, content_digest="00"
    )
    short = policy_pb2.PolicyHeader(policy=header.policy, format="safetensors", size_bytes=5, content_digest="00")
    pickled = policy_pb2.PolicyHeader(policy=header.policy, format="pickle", size_bytes=4)
    chunk = policy_pb2.PublishPolicyRequest(chunk=b"abcd")
    with grpc.insecure_channel(server.target) as channel:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        for messages, complaint in (
            ([policy_pb2.PublishPolicyRequest(header=header), chunk], "content digest"),
            ([policy_pb2.PublishPolicyRequest(header=header), chunk, chunk], "announced 4 bytes and sent 8"),
            ([policy_pb2.PublishPolicyRequest(header=short), chunk], "announced 5 bytes and sent 4"),
            ([policy_pb2.PublishPolicyRequest(header=pickled), chunk], "pickle"),
            ([chunk], "header"),
            ([], "header"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.PublishPolicy(iter(messages), timeout=20)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert complaint in caught.value.details()
    assert received == []


def test_health_and_reflection_need_no_key(guarded: IngestServer) -> None:
    with grpc.insecure_channel(guarded.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", *SERVICES):
            response = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(iter(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))))
        assert set(SERVICES) <= {service.name for service in answer.list_services_response.service}


def test_a_claim_may_name_its_rollouts(client: IngestClient) -> None:
    client.enqueue([make_rollout(name) for name in ("a", "b", "client-own")])
    assert [a.rollout.rollout_id for a in client.claim("w", 5, 30.0, rollout_ids=["b"])] == ["b"]
    assert client.claim("w", 5, 30.0, rollout_ids=["b", "unknown"]) == []
    assert [a.rollout.rollout_id for a in client.claim("w", 5, 30.0)] == ["a"]  # its maker's own is left alone
    assert [a.rollout.rollout_id for a in client.claim("w", 5, 30.0, rollout_ids=["client-own"])] == ["client-own"]
    with pytest.raises(ValueError, match="claim in parts"):
        client.claim("w", 5, 30.0, rollout_ids=[f"r{number}" for number in range(501)])


def test_what_an_earlier_process_left_open_can_be_cancelled(store: Store, client: IngestClient) -> None:
    client.enqueue([make_rollout(name) for name in ("running", "queued", "done")])
    attempts = client.claim("w", 1, 30.0, rollout_ids=["running"]) + client.claim("w", 1, 30.0, rollout_ids=["done"])
    client.complete(attempts[1].attempt_id, types.Outcome("succeeded"))
    assert store.cancel_open("restarted").result() == 2
    statuses = {s.rollout_id: s.status for s in client.rollout_statuses(["running", "queued", "done"])}
    assert statuses == {"running": "cancelled", "queued": "cancelled", "done": "succeeded"}


def test_versions_are_known_after_a_restart(store: Store, client: IngestClient) -> None:
    assert client.get_policy() is None
    for version in (0, 1):
        store.record_policy(types.PolicyVersion(version, f"{version:032x}", version)).result()
    assert client.get_policy() == types.PolicyVersion(1, f"{1:032x}", 1)


def test_each_call_of_a_batch_is_judged_on_its_own(client: IngestClient) -> None:
    client.enqueue([make_rollout("a"), make_rollout("b")])
    running, ended = client.claim("w", 2, 30.0)
    assert client.record_calls([make_call(running, 0)]) == {}
    client.complete(ended.attempt_id, DONE)
    stranger = replace(running, attempt_id="a.9")
    batch = [
        make_call(running, 0),  # once more: it is stored
        make_call(running, 1),
        make_call(running, 1),  # twice in one batch
        replace(make_call(running, 2), response_ids=make_call(running, 2).response_ids[:3]),  # arrays do not fit
        replace(make_call(running, 0, tokens=6), call_id="a.1-c0"),  # another call under a known id
        make_call(ended, 0),
        make_call(stranger, 0),
        make_call(running, 3),
    ]
    refused = client.record_calls(batch)
    assert sorted(refused) == ["a.1-c0", "a.1-c2", "a.9-c0", "b.1-c0"]
    for call_id, word in (("a.1-c0", "5 tokens"), ("a.1-c2", "[R], [R]"), ("a.9-c0", "claimed"), ("b.1-c0", "ended")):
        assert word in refused[call_id]
    assert [call.call_id for call in client.list_calls("a.1")] == ["a.1-c0", "a.1-c1", "a.1-c3"]
    assert client.list_calls("b.1") == []
