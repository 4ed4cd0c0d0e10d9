"""Values at the edge of what a database holds, over real sockets and on both databases: kept, replaced or refused."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import call_pb2, call_pb2_grpc
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import IdentityConflict
from lightning_jax.ingest.references import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import claim_one, make_call, make_rollout
from tests.ingest.otlp import Exporter, make_request, make_span


def test_nul_is_replaced_in_text_and_kept_in_bytes(client: IngestClient, exporter: Exporter, store: Store) -> None:
    attempt = claim_one(store)
    call = replace(make_call(attempt, 0), text="a\0b", request={"messages": [{"role": "user", "content": "x\0"}]})
    assert client.record_calls([call]) == {}
    span = make_span(1, **{"output.value": "o\0"})
    span.name = "n\0"
    request = make_request(span)
    request.resource_spans[0].scope_spans[0].scope.name = "s\0"
    exporter.send(request, attempt.api_key)
    outcome = types.Outcome("failed", {"out": "p\0"}, "r\0")
    assert client.complete(attempt.attempt_id, outcome) == "sealed"
    sealed = next(client.sealed("learner"))
    assert sealed.calls[0].text == "a\ufffdb"
    assert sealed.calls[0].request == call.request
    (stored,) = store.sealed_after(0)[0].spans
    assert (stored.name, stored.scope) == ("n\ufffd", "s\ufffd")
    assert Span.FromString(stored.body) == span
    assert sealed.outcome == types.Outcome("failed", {"out": "p\0"}, "r\ufffd")


def test_nul_in_what_is_put_aside_or_looked_up_harms_no_batch(exporter: Exporter, store: Store) -> None:
    claim_one(store)
    bad, good = make_span(1), make_span(2)
    bad.name, bad.span_id = "bad\0", b"short"
    good.name = "good\0"
    url = {"http.url": "http://h/rollout/r\0/attempt/r.1\0/v1", "gen_ai.response.id": "chatcmpl-x\0y"}
    resource = {ROLLOUT_ATTRIBUTE: "r\0", ATTEMPT_ATTRIBUTE: "r.1\0"}
    response = exporter.send(make_request(bad, good, make_span(3, **url), resource=resource))
    assert response.partial_success.rejected_spans == 1
    assert store.counts().spans == 2
    assert store.counts().quarantined == {("span", "bad_id"): 1, ("span", "unknown_attempt"): 2}


def test_nul_in_an_id_refuses_that_item_alone(client: IngestClient, store: Store) -> None:
    attempt = claim_one(store)
    good, bad = make_call(attempt, 0), replace(make_call(attempt, 1), call_id="c\0")
    assert list(client.record_calls([bad, good])) == ["c\0"]
    assert [call.call_id for call in client.list_calls(attempt.attempt_id)] == [good.call_id]
    with pytest.raises(ValueError, match="NUL"):
        client.record_rewards([types.Reward("w\0", "r", "", 1.0)])
    with pytest.raises(ValueError, match="NUL"):
        client.enqueue([replace(make_rollout("other"), task_id="t\0")])


def test_a_value_that_the_database_refuses_is_an_invalid_argument(postgres_url: str) -> None:
    with Store(postgres_url) as store:
        server = IngestServer(store)
        server.start()
        with grpc.insecure_channel(server.target) as channel:
            stub = call_pb2_grpc.CallServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListCalls(call_pb2.ListCallsRequest(attempt_id="a\0"), timeout=30)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with IngestClient(server.target, patience_s=0) as client:
            with pytest.raises(ValueError, match="NUL"):  # a write
                client.ack("consumer\0", 1)
            assert client.enqueue([make_rollout("r")]) == 1  # its neighbours are not harmed
        server.stop(grace=0.5)


def test_steps_have_64_bits(client: IngestClient, store: Store) -> None:
    rollout = replace(make_rollout("r"), step=2**62)
    assert client.enqueue([rollout]) == 1
    (attempt,) = client.claim("w", 1, 30.0)
    assert attempt.rollout.step == 2**62
    policy = types.PolicyVersion(2**40, "d", 2**62)
    store.record_policy(policy).result()
    assert client.get_policy() == policy


def test_a_reward_id_that_comes_again_for_something_else_is_refused(client: IngestClient, store: Store) -> None:
    claim_one(store, "a")
    claim_one(store, "b")
    reward = types.Reward("w", "a", "a.1", 1.0, {"exact": 1.0, "brief": 0.5})
    assert client.record_rewards([reward]) == 1
    assert client.record_rewards([replace(reward, attempt_id="")]) == 0
    assert client.record_rewards([replace(reward, components={"brief": 0.5, "exact": 1.0})]) == 0
    others = (
        replace(reward, value=0.0),
        replace(reward, value=None),
        replace(reward, components={"exact": 1.0}),
        replace(reward, call_id="a.1-c0"),
        replace(reward, rollout_id="b", attempt_id="b.1"),
        replace(reward, attempt_id="a.2"),
    )
    for other in others:
        with pytest.raises(IdentityConflict, match="id of its own"):
            client.record_rewards([types.Reward("new", "a", "a.1", 1.0), other])
    with pytest.raises(IdentityConflict, match="id of its own"):
        client.record_rewards([types.Reward("twice", "b", "", 1.0), types.Reward("twice", "b", "", 2.0)])
    assert store.counts().rewards == 1


def test_a_reward_that_is_no_number_is_still_itself_when_it_comes_again(client: IngestClient, store: Store) -> None:
    claim_one(store)
    reward = types.Reward("w", "r", "", float("nan"), {"x": float("nan")})
    assert [client.record_rewards([reward]) for _ in range(2)] == [1, 0]
