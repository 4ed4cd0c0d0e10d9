"""OTLP/HTTP over a real socket: protobuf and JSON, compression, refusals, and whose spans they are."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
import zlib
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette

from lightning_jax import types
from lightning_jax.ingest.otlp_json import request_of_json
from lightning_jax.ingest.receiver import MAX_REQUEST_BYTES
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import claim_one
from tests.ingest.otlp import make_request, make_span
from tests.ingest.processes import free_port

DONE = types.Outcome("succeeded")
PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """SQLite alone: nothing here depends on the database."""
    return sqlite_url


@pytest.fixture
def http(server: IngestServer) -> Iterator[httpx.Client]:
    port = free_port()
    app = Starlette(routes=list(server.http_routes()))
    front = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_config=None, ws="none"))
    thread = threading.Thread(target=front.run, daemon=True)
    thread.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=5)) as client:
        yield client
    front.should_exit = True
    thread.join()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def json_request(**span: object) -> dict[str, object]:
    fields = {"traceId": TRACE, "spanId": SPAN, "name": "n", "kind": 2, "startTimeUnixNano": "1", "future": 1, **span}
    scope = {"scope": {"name": "my.library", "version": "1"}, "spans": [fields]}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


@pytest.mark.parametrize(
    ("encoding", "pack"), [(None, bytes), ("identity", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_protobuf_in_every_encoding(http: httpx.Client, store: Store, encoding: str | None, pack: object) -> None:
    attempt = claim_one(store)
    payload = make_request(*(make_span(number) for number in range(1, 11))).SerializeToString()
    headers = PROTOBUF | bearer(attempt.api_key) | ({"content-encoding": encoding} if encoding else {})
    for _ in range(2):
        answer = http.post("/v1/traces", content=pack(payload), headers=headers)  # type: ignore[operator]
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == "application/x-protobuf"
    assert store.counts().spans == 10


def test_json_with_hexadecimal_ids_and_unknown_fields(http: httpx.Client, store: Store) -> None:
    attempt = claim_one(store)
    span = {"parentSpanId": SPAN[::-1].upper(), "attributes": [{"key": "n", "value": {"intValue": "7"}}]}
    answer = http.post("/v1/traces", json=json_request(**span), headers=JSON | bearer(attempt.api_key))
    assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (200, {}, "application/json")
    store.complete(attempt.attempt_id, DONE).result()
    (stored,) = store.sealed_after(0)[0].spans
    assert (stored.trace_id.hex(), stored.span_id.hex(), stored.scope) == (TRACE, SPAN, "my.library")
    assert stored.parent_id.hex() == SPAN[::-1]
    assert Span.FromString(stored.body).attributes[0].value.int_value == 7


def test_ids_in_base64_are_the_same_ids() -> None:
    ids = {"traceId": "W47/95gDgQPSabYzgT/GDA==", "spanId": "7uGbfsPBsXQ="}
    assert request_of_json(json.dumps(json_request(**ids))) == request_of_json(json.dumps(json_request()))


def test_partial_success_counts_what_cannot_be_stored(http: httpx.Client, store: Store) -> None:
    answer = http.post("/v1/traces", json=json_request(spanId="00" * 8), headers=JSON)
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "1"
    payload = make_request(make_span(1), make_span(0)).SerializeToString()
    response = ExportTraceServiceResponse.FromString(http.post("/v1/traces", content=payload, headers=PROTOBUF).content)
    assert response.partial_success.rejected_spans == 1
    assert store.counts().spans == 1


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"\xff\xff", PROTOBUF, 400),
        (b"{", JSON, 400),
        (b"[]", JSON, 400),
        (b'{"resourceSpans": 3}', JSON, 400),
        (json.dumps(json_request(traceId="xyz")).encode(), JSON, 400),
        (json.dumps(json_request(traceId=5)).encode(), JSON, 400),
        (json.dumps(json_request(attributes={"a": 1})).encode(), JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b"not gzip", PROTOBUF | {"content-encoding": "gzip"}, 400),
        (gzip.compress(b"\x0a\x00")[:-4], PROTOBUF | {"content-encoding": "gzip"}, 400),
        (gzip.compress(b"\x0a\x00") * 2, PROTOBUF | {"content-encoding": "gzip"}, 400),
        (b"", PROTOBUF | {"content-encoding": "br"}, 415),
        (b"", {"content-type": "text/plain"}, 415),
        (b"", {}, 415),
        (gzip.compress(bytes(MAX_REQUEST_BYTES + 1), 1), PROTOBUF | {"content-encoding": "gzip"}, 413),
        (b"", PROTOBUF | bearer("ljx-made-up"), 401),
    ],
)
def test_what_is_refused(
    http: httpx.Client, store: Store, content: bytes, headers: dict[str, str], status: int
) -> None:
    answer = http.post("/v1/traces", content=content, headers=headers)
    assert answer.status_code == status
    assert answer.content  # a google.rpc.Status in the request's encoding
    if headers.get("content-type") == JSON["content-type"]:
        assert answer.json()["message"]
    assert "retry-after" not in answer.headers
    assert store.counts().spans == 0


def test_too_large_is_refused_without_being_read(http: httpx.Client, store: Store) -> None:
    def much() -> Iterator[bytes]:
        for _ in range(4096):
            yield bytes(2**20)

    headers = PROTOBUF | {"content-length": str(2**32)}
    started = time.monotonic()
    with contextlib.suppress(httpx.WriteError):  # refused and closed while we still wrote
        assert http.post("/v1/traces", content=much(), headers=headers).status_code == 413
    assert time.monotonic() - started < 10
    assert store.counts().spans == 0


def test_an_attempts_path_says_whose_spans_they_are_and_must_agree_with_the_key(
    http: httpx.Client, store: Store
) -> None:
    mine, other = claim_one(store, "mine"), claim_one(store, "other")
    payload = make_request(make_span(1)).SerializeToString()

    def post(attempt: types.Attempt, key: str = "") -> int:
        path = f"/rollout/{attempt.rollout.rollout_id}/attempt/{attempt.attempt_id}/v1/traces"
        return http.post(path, content=payload, headers=PROTOBUF | (bearer(key) if key else {})).status_code

    assert post(mine, other.api_key) == 403
    assert store.counts().spans == 0
    assert post(mine, mine.api_key) == post(mine) == 200
    assert store.trace_owners([make_span(1).trace_id]) == {make_span(1).trace_id: {("mine", "mine.1")}}
    assert http.post("/rollout/x/attempt/x.1/v1/traces", content=payload, headers=PROTOBUF).status_code == 404


def test_metrics_count_what_came_in_and_what_was_put_aside(http: httpx.Client, store: Store) -> None:
    payload = make_request(make_span(1), make_span(2), make_span(0)).SerializeToString()
    http.post("/v1/traces", content=payload, headers=PROTOBUF)
    text = http.get("/metrics/ingest").text
    for line in (
        "ljx_ingest_spans_stored_total 2.0",
        "ljx_ingest_spans_rejected_total 1.0",
        'ljx_ingest_quarantined{kind="span",reason="no_identity"} 2.0',
        'ljx_ingest_quarantined{kind="span",reason="bad_id"} 1.0',
    ):
        assert line in text


def test_a_store_that_cannot_write_asks_for_a_retry(http: httpx.Client, store: Store) -> None:
    store.close()
    answer = http.post("/v1/traces", content=make_request(make_span(1)).SerializeToString(), headers=PROTOBUF)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
