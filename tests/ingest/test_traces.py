"""OTLP over a real socket: stock exporters, hostile bytes, back-pressure, and whose spans they are."""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lightning_jax import types
from lightning_jax.ingest.admission import ReceiverLimits
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.receiver import MAX_REQUEST_BYTES
from lightning_jax.ingest.references import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE
from lightning_jax.ingest.retry_info import retry_trailers
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import claim_one, make_call
from tests.ingest.otlp import Exporter, make_request, make_span

DONE = types.Outcome("succeeded")


def owners(store: Store, *traces: int) -> dict[int, set[tuple[str, str]]]:
    found = store.trace_owners([trace.to_bytes(16, "big") for trace in traces])
    return {int.from_bytes(trace, "big"): pairs for trace, pairs in found.items()}


def test_export_is_idempotent_and_full_success_is_silent(exporter: Exporter, store: Store) -> None:
    attempt = claim_one(store)
    request = make_request(*(make_span(number) for number in range(1, 11)))
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        assert not exporter.send(request, attempt.api_key, compression).HasField("partial_success")
    assert store.counts().spans == 10
    assert owners(store, 1) == {1: {("r", "r.1")}}


def test_spans_are_kept_whole(exporter: Exporter, store: Store) -> None:
    attempt = claim_one(store)
    span = make_span(1, **{"output.value": "ü" * 1000})
    exporter.send(make_request(span), attempt.api_key)
    store.complete(attempt.attempt_id, DONE).result()
    (stored,) = store.sealed_after(0)[0].spans
    assert Span.FromString(stored.body) == span
    assert (stored.name, stored.scope) == ("span 1", "openinference.instrumentation.openai")


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\xff", b"not a protobuf at all"])
def test_garbage_is_an_invalid_argument(exporter: Exporter, garbage: bytes) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        exporter.send(garbage)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_an_empty_export_is_fine(exporter: Exporter) -> None:
    assert exporter.send(b"") == ExportTraceServiceResponse()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_too_large_is_refused_also_when_it_is_small_on_the_wire(
    exporter: Exporter, store: Store, compression: grpc.Compression
) -> None:
    bomb = make_request(make_span(1, **{"x": "a" * (MAX_REQUEST_BYTES + 1)})).SerializeToString()
    assert len(gzip.compress(bomb, 1)) < 2**20
    with pytest.raises(grpc.RpcError) as caught:
        exporter.send(bomb, compression=compression)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert store.counts().spans == 0


def test_ten_megabytes_in_one_batch_are_taken(exporter: Exporter, store: Store) -> None:
    request = make_request(*(make_span(number, **{"input.value": "x" * 20_000}) for number in range(1, 513)))
    exporter.send(request, compression=grpc.Compression.Gzip)
    assert store.counts().spans == 512


def test_spans_without_identity_of_their_own_are_counted_as_rejected(exporter: Exporter, store: Store) -> None:
    attempt = claim_one(store)
    bad = [make_span(2), make_span(3), make_span(4)]
    bad[0].trace_id = b"short"
    bad[1].span_id = bytes(8)
    bad[2].span_id = b""
    response = exporter.send(make_request(make_span(1), *bad), attempt.api_key)
    assert response.partial_success.rejected_spans == 3
    assert "trace_id" in response.partial_success.error_message
    assert store.counts().spans == 1
    assert store.counts().quarantined == {("span", "bad_id"): 3}


def test_identity_by_key_beats_resource_attributes(exporter: Exporter, store: Store) -> None:
    mine, other = claim_one(store, "mine"), claim_one(store, "other")
    resource = {ROLLOUT_ATTRIBUTE: "other", ATTEMPT_ATTRIBUTE: other.attempt_id}
    exporter.send(make_request(make_span(1, trace=1), resource=resource), mine.api_key)
    exporter.send(make_request(make_span(1, trace=2), resource=resource))
    assert owners(store, 1, 2) == {1: {("mine", "mine.1")}, 2: {("other", "other.1")}}
    with pytest.raises(grpc.RpcError) as caught:
        exporter.send(make_request(make_span(1, trace=3)), "ljx-made-up")
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_spans_are_placed_by_url_and_by_response_id_and_speak_for_their_trace(exporter: Exporter, store: Store) -> None:
    attempt = claim_one(store)
    store.record_call(make_call(attempt, 0)).result()
    # The parent arrives first and alone: nobody can place it yet.
    exporter.send(make_request(make_span(9, trace=1), make_span(9, trace=2), make_span(9, trace=3)))
    assert store.counts().quarantined == {("span", "no_identity"): 3}
    url = attempt.base_url + "/chat/completions"
    blob = '{"id":"chatcmpl-r.1-c0","choices":[]}'
    exporter.send(make_request(make_span(1, trace=1, **{"http.url": url}), make_span(2, trace=1)))
    exporter.send(make_request(make_span(1, trace=2, **{"output.value": blob})))
    exporter.send(make_request(make_span(1, trace=3, **{"gen_ai.response.id": "chatcmpl-someone-elses"})))
    assert owners(store, 1, 2, 3) == {1: {("r", "r.1")}, 2: {("r", "r.1")}}
    assert store.counts().quarantined == {("span", "no_identity"): 2}
    store.complete(attempt.attempt_id, DONE).result()
    assert len(store.sealed_after(0)[0].spans) == 5


def test_a_trace_of_two_rollouts_adopts_nobody(exporter: Exporter, store: Store) -> None:
    first, second = claim_one(store, "a"), claim_one(store, "b")
    spans = [make_span(1, **{"http.url": first.base_url}), make_span(2, **{"http.url": second.base_url}), make_span(3)]
    exporter.send(make_request(*spans))
    assert owners(store, 1) == {1: {("a", "a.1"), ("b", "b.1")}}
    assert store.counts().quarantined == {("span", "ambiguous_trace"): 1}


def test_resource_attributes_that_name_no_attempt_are_put_aside(exporter: Exporter, store: Store) -> None:
    claim_one(store)
    exporter.send(make_request(make_span(1), resource={ROLLOUT_ATTRIBUTE: "r", ATTEMPT_ATTRIBUTE: "r.7"}))
    assert store.counts().quarantined == {("span", "unknown_attempt"): 1}


def test_spans_that_come_before_their_attempt_are_placed_when_it_is_claimed(exporter: Exporter, store: Store) -> None:
    resource = {ROLLOUT_ATTRIBUTE: "r", ATTEMPT_ATTRIBUTE: "r.1"}
    exporter.send(make_request(make_span(1), make_span(2), resource=resource))
    exporter.send(make_request(make_span(3, trace=2), resource=resource | {ATTEMPT_ATTRIBUTE: "r.2"}))
    assert store.counts().quarantined == {("span", "unknown_attempt"): 3}
    attempt = claim_one(store)
    assert owners(store, 1, 2) == {1: {("r", "r.1")}}
    assert store.counts().quarantined == {("span", "unknown_attempt"): 1}
    store.complete(attempt.attempt_id, DONE).result()
    assert len(store.sealed_after(0)[0].spans) == 2


def test_a_full_queue_asks_for_a_short_pause_in_both_trailers(store: Store) -> None:
    server = IngestServer(store, limits=ReceiverLimits(spans=5))
    server.start()
    exporter = Exporter(server.target)
    block = threading.Event()
    blocked = store._writer.submit(lambda transaction: block.wait(30))

    def send(first: int) -> grpc.RpcError | ExportTraceServiceResponse:
        try:
            return exporter.send(make_request(*(make_span(number) for number in range(first, first + 8))))
        except grpc.RpcError as error:
            return error

    # Both are larger than the bound: whichever comes first is alone and let in, the other has to come back.
    with ThreadPoolExecutor(2) as pool:
        pending = {pool.submit(send, 1), pool.submit(send, 101)}
        done, _ = wait(pending, timeout=30, return_when=FIRST_COMPLETED)
        block.set()
        refusal = done.pop().result()
        (let_in,) = (future.result() for future in pending if future.result() is not refusal)
    assert isinstance(refusal, grpc.RpcError)
    assert refusal.code() == grpc.StatusCode.UNAVAILABLE
    assert {key for key, _ in refusal.trailing_metadata()} >= {"google.rpc.retryinfo-bin", "grpc-status-details-bin"}
    assert let_in == ExportTraceServiceResponse()
    blocked.result()
    assert store.counts().spans == 8
    exporter.close()
    server.stop(grace=0.5)


def test_a_store_that_cannot_write_is_retryable(
    exporter: Exporter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(transaction: object, **_: object) -> int:
        raise StoreUnavailable("disk full")

    monkeypatch.setattr("lightning_jax.ingest.spans.record", full)
    with pytest.raises(grpc.RpcError) as caught:
        exporter.send(make_request(make_span(1)))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_retry_trailers_are_what_googles_own_messages_decode() -> None:
    error_details = pytest.importorskip("google.rpc.error_details_pb2")
    status_pb2 = pytest.importorskip("google.rpc.status_pb2")
    trailers = dict(retry_trailers(grpc.StatusCode.UNAVAILABLE, "full " * 100, 0.5))
    expected = error_details.RetryInfo(retry_delay=Duration(nanos=500_000_000))
    assert error_details.RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"]) == expected
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (14, "full " * 100)
    unpacked = error_details.RetryInfo()
    assert status.details[0].Unpack(unpacked)
    assert unpacked == expected


def test_the_stock_exporter_end_to_end(server: IngestServer, store: Store) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    attempt = claim_one(store)
    stock = OTLPSpanExporter(
        endpoint=server.target,
        insecure=True,
        headers=(("authorization", f"Bearer {attempt.api_key}"),),
        compression=grpc.Compression.Gzip,
    )
    provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    provider.add_span_processor(BatchSpanProcessor(stock))
    tracer = provider.get_tracer("my.agent")
    with tracer.start_as_current_span("outer"):
        for number in range(20):
            with tracer.start_as_current_span(f"inner {number}", attributes={"n": number}):
                pass
    provider.shutdown()
    store.complete(attempt.attempt_id, DONE).result()
    spans = store.sealed_after(0)[0].spans
    outer = next(span for span in spans if span.name == "outer")
    assert len(spans) == 21
    assert {span.parent_id for span in spans if span is not outer} == {outer.span_id}
    assert {span.scope for span in spans} == {"my.agent"}
