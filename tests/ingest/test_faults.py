"""Hostile input and a store in trouble, over real sockets: refused rightly, nothing lost, well again after."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lightning_jax import types
from lightning_jax.ingest.admission import ReceiverLimits
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.retry_info import _field
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.writer import Transaction
from tests.ingest.conftest import claim_one, make_call
from tests.ingest.otlp import Exporter, make_request, make_span
from tests.ingest.postgres import PostgresServer, binaries
from tests.ingest.processes import ServerProcess

DONE = types.Outcome("succeeded")


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """SQLite: PostgreSQL has a test of its own."""
    return sqlite_url


def refusal(exporter: Exporter, data: object, key: str = "") -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        exporter.send(data, key)  # type: ignore[arg-type]
    return caught.value


def assert_come_back(error: grpc.RpcError) -> None:
    """UNAVAILABLE with a delay of a second at most in the trailer that exporters read."""
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    trailers = dict(error.trailing_metadata())
    delay = Duration.FromString(trailers["google.rpc.retryinfo-bin"][2:])
    assert 0 < delay.ToMilliseconds() <= 1000
    assert "grpc-status-details-bin" in trailers


def test_a_full_disk_asks_exporters_and_clients_to_come_back(
    exporter: Exporter, server: IngestServer, store: Store
) -> None:
    attempt = claim_one(store)
    exporter.send(make_request(make_span(1)), attempt.api_key)

    def limit(pages: int | None) -> None:
        def apply(transaction: Transaction) -> None:
            used = transaction.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            transaction.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages or used}")

        store._writer.submit(apply).result()

    limit(None)
    large = make_request(*(make_span(number, **{"x": "y" * 10_000}) for number in range(2, 40)))
    assert_come_back(refusal(exporter, large, attempt.api_key))
    with IngestClient(server.target, patience_s=0) as client, pytest.raises(StoreUnavailable, match="full"):
        client.record_calls([make_call(attempt, 1, tokens=100_000)])
    limit(1_000_000)
    exporter.send(large, attempt.api_key)
    assert store.counts().spans == 39


def test_a_locked_database_asks_to_come_back(exporter: Exporter, store: Store, tmp_path: Path) -> None:
    attempt = claim_one(store)
    store._writer.submit(lambda t: t.connection.exec_driver_sql("PRAGMA busy_timeout = 50")).result()
    blocker = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    assert_come_back(refusal(exporter, make_request(make_span(1)), attempt.api_key))
    blocker.execute("ROLLBACK")
    blocker.close()
    exporter.send(make_request(make_span(1)), attempt.api_key)
    assert store.counts().spans == 1


def test_postgresql_that_crashes_or_hangs_is_unavailable_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed here (Debian: apt-get install postgresql)")
    monkeypatch.setattr("lightning_jax.ingest.database.POSTGRES_TIMEOUT_S", 2)
    postgres = PostgresServer(folder)
    try:
        with Store(postgres.fresh("ljx")) as store:
            server = IngestServer(store)
            server.start()
            exporter = Exporter(server.target)
            attempt = claim_one(store)
            exporter.send(make_request(make_span(1)), attempt.api_key)
            postgres.stop()
            assert_come_back(refusal(exporter, make_request(make_span(2)), attempt.api_key))
            postgres.start()
            exporter.send(make_request(make_span(2)), attempt.api_key)
            assert store.counts().spans == 2
            slow = store._writer.submit(lambda t: t.connection.exec_driver_sql("SELECT pg_sleep(20)"))
            with pytest.raises(StoreUnavailable, match="timeout"):
                slow.result(timeout=15)
            exporter.send(make_request(make_span(3)), attempt.api_key)
            exporter.close()
            server.stop(grace=0.5)
    finally:
        postgres.remove()


def test_invalid_utf8_and_other_garbage_never_reach_the_store(exporter: Exporter, store: Store) -> None:
    good = make_request(make_span(1)).SerializeToString()
    assert b"span 1" in good
    for garbage in (
        good.replace(b"span 1", b"span \xff"),
        good[:-3],
        good + b"\xff",
        b"\x00" * 1000,
        b"\x1f\x8b" + good,
    ):
        assert refusal(exporter, garbage).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert store.counts().spans == 0


def test_absurd_but_valid_requests_are_stored(exporter: Exporter, store: Store) -> None:
    attempt = claim_one(store)
    wide = make_span(1)
    for number in range(100_000):
        wide.attributes.add(key=f"k{number}").value.int_value = number
    exporter.send(make_request(wide), attempt.api_key)
    exporter.send(make_request(*(make_span(number, trace=2) for number in range(1, 10_001))), attempt.api_key)
    deep = make_span(1, trace=3)
    value = deep.attributes.add(key="deep").value
    for _ in range(30):
        value = value.array_value.values.add()
    value.string_value = "bottom"
    exporter.send(make_request(deep), attempt.api_key)
    # Nested beyond what protobuf reads: refused as malformed, not a crash.
    nested = b""
    for field in (*(1, 5) * 200, 2, 9, 2, 2, 1):  # AnyValue and ArrayValue in turn; then up to the request
        nested = _field(field, nested)
    assert refusal(exporter, nested, attempt.api_key).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert store.counts().spans == 10_002


def test_health_answers_while_a_hundred_megabytes_are_refused(
    exporter: Exporter, server: IngestServer, store: Store
) -> None:
    errors: list[grpc.RpcError] = []
    pushing = threading.Thread(target=lambda: errors.append(refusal(exporter, bytes(100 * 2**20))))
    with grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        pushing.start()
        checks = 0
        while pushing.is_alive():
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            checks += 1
        pushing.join()
    assert checks > 0
    assert errors[0].code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "google.rpc.retryinfo-bin" not in dict(errors[0].trailing_metadata())  # never to be repeated
    assert store.counts().spans == 0


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_what_is_too_large_is_never_held_whole(sqlite_url: str, compression: grpc.Compression) -> None:
    with ServerProcess(sqlite_url) as process:
        exporter = Exporter(process.target)
        exporter.send(make_request(make_span(1)))
        before = process.peak_mib()
        with pytest.raises(grpc.RpcError) as caught:
            exporter.send(bytes(256 * 2**20), compression=compression)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert process.peak_mib() - before < 128
        exporter.close()


def test_clock_skew_duplicates_and_disorder_change_nothing(exporter: Exporter, store: Store) -> None:
    attempt = claim_one(store)
    call = make_call(attempt, 0)
    store.record_call(call).result()
    agent = make_span(1, **{"gen_ai.agent.name": "planner"})
    model = make_span(2, **{"gen_ai.response.id": f"chatcmpl-{call.call_id}"})
    model.parent_span_id = agent.span_id
    model.start_time_unix_nano, model.end_time_unix_nano = 2**64 - 1, 0  # ends before it starts, in another age
    for batch in ([model], [agent], [model, agent], [agent, agent]):
        exporter.send(make_request(*batch), attempt.api_key)
    store.complete(attempt.attempt_id, DONE).result()
    exporter.send(make_request(make_span(3)), attempt.api_key)  # late
    (sealed,) = store.sealed_after(0)
    assert [Span.FromString(span.body).name for span in sealed.spans] == ["span 2", "span 1"]
    assert store.counts().spans == 3


def test_another_attempts_key_cannot_claim_these_spans(exporter: Exporter, store: Store) -> None:
    mine, other = claim_one(store, "mine"), claim_one(store, "other")
    url = {"http.url": mine.base_url, "gen_ai.response.id": "chatcmpl-mine.1-c0"}
    store.record_call(make_call(mine, 0)).result()
    exporter.send(make_request(make_span(1, **url)), other.api_key)
    # The key decides: whoever holds it can only write into its own attempt.
    trace = make_span(1).trace_id
    assert store.trace_owners([trace]) == {trace: {("other", "other.1")}}
    for key in ("wrong", "ljx-wrong", other.api_key[:-1]):
        assert refusal(exporter, make_request(make_span(2)), key).code() == grpc.StatusCode.UNAUTHENTICATED
    assert store.counts().spans == 1


def test_the_stock_exporter_under_back_pressure_loses_nothing_in_silence(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

    given_up: set[int] = set()  # span ids of batches that the exporter itself reports as not exported

    class Reporting(OTLPSpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = super().export(spans)
            if result is not SpanExportResult.SUCCESS:
                given_up.update(span.context.span_id for span in spans)
            return result

    attempt = claim_one(store)
    server = IngestServer(store, limits=ReceiverLimits(requests=1, spans=100))
    server.start()
    block = threading.Event()
    blocked = store._writer.submit(lambda transaction: block.wait(30))
    threading.Timer(1.2, block.set).start()
    providers, made = [], set[int]()
    for _ in range(4):  # together they exceed the bound while the store is slow
        stock = Reporting(
            endpoint=server.target, insecure=True, headers=(("authorization", f"Bearer {attempt.api_key}"),)
        )
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(stock, schedule_delay_millis=50, max_export_batch_size=64))
        providers.append(provider)
    with caplog.at_level(logging.WARNING, logger="opentelemetry"):
        for provider in providers:
            tracer = provider.get_tracer("agent")
            for number in range(150):
                span = tracer.start_span(f"span {number}")
                made.add(span.get_span_context().span_id)
                span.end()
        for provider in providers:
            provider.shutdown()
    blocked.result()
    assert server._receiver.counters()["exports_throttled"] > 0, "the bound was never felt: the test shows nothing"
    store.complete(attempt.attempt_id, DONE).result()
    stored = {int.from_bytes(span.span_id, "big") for span in store.sealed_after(0)[0].spans}
    assert stored
    assert len(made) == 600
    assert stored | given_up == made  # each is there, or the exporter said of that very one that it gave up
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert bool(errors) == bool(given_up)
    server.stop(grace=0.5)
