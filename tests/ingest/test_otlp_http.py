"""OTLP/HTTP over a real socket: protobuf and JSON, compression, refusals, and whose spans they are."""

from __future__ import annotations

import gzip
import http.client as http_client
import json
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import httpx
import pytest
import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette

from lightning_jax import types
from lightning_jax.ingest.admission import ReceiverLimits
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
def limits() -> ReceiverLimits:
    """The usual ones; tests that feel them say others."""
    return ReceiverLimits()


@pytest.fixture
def keys() -> dict[str, list[str]]:
    """None but those of attempts."""
    return {}


@pytest.fixture
def server(store: Store, limits: ReceiverLimits, keys: dict[str, list[str]]) -> IngestServer:
    """Its HTTP routes are used alone."""
    return IngestServer(store, limits=limits, keys=keys)


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


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


def pending_bytes(http: httpx.Client) -> float:
    found = re.search(r"^ljx_ingest_bytes_pending (\S+)$", http.get("/metrics/ingest").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


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


def head(**headers: object) -> bytes:
    """The head of an export."""
    lines = {"host": "h", "content-type": "application/x-protobuf", **headers}
    text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"POST /v1/traces HTTP/1.1\r\n{text}\r\n".encode()


def connect(http: httpx.Client) -> socket.socket:
    http.get("/metrics/ingest")  # it listens
    return socket.create_connection((http.base_url.host, http.base_url.port), timeout=20)


def answer_on(connection: socket.socket) -> tuple[int, dict[str, str]]:
    """Status and headers of the next answer."""
    answer = http_client.HTTPResponse(connection, method="POST")
    answer.begin()
    answer.read()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}


def test_too_large_is_refused_before_any_of_it_is_sent(http: httpx.Client, store: Store) -> None:
    with connect(http) as connection:
        connection.sendall(head(content_length=2**32))
        status, headers = answer_on(connection)
    assert (status, headers["connection"]) == (413, "close")
    assert "retry-after" not in headers  # never to be repeated
    assert store.counts().spans == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_too_much_sees_why_it_is_refused(http: httpx.Client, chunked: bool) -> None:
    size = MAX_REQUEST_BYTES + 2**25
    parts = (bytes(2**20) for _ in range(size // 2**20))
    headers = PROTOBUF | ({} if chunked else {"content-length": str(size)})
    assert http.post("/v1/traces", content=parts, headers=headers).status_code == 413


@pytest.mark.parametrize("limits", [ReceiverLimits(bytes=2000)])
def test_what_would_exceed_the_bound_is_refused_before_its_body_comes(http: httpx.Client, store: Store) -> None:
    payload = make_request(make_span(1, **{"x": "y" * 1500})).SerializeToString()
    half = len(payload) // 2
    with connect(http) as first, connect(http) as second, connect(http) as third:
        first.sendall(head(content_length=len(payload)) + payload[:half])
        wait_until(lambda: pending_bytes(http) == len(payload))
        second.sendall(head(content_length=600))  # announced, not sent
        status, headers = answer_on(second)
        assert (status, headers["retry-after"]) == (503, "1")
        third.sendall(head(transfer_encoding="chunked") + b"258\r\n" + bytes(600) + b"\r\n")  # not even announced
        assert answer_on(third)[0] == 503
        first.sendall(payload[half:])
        assert answer_on(first)[0] == 200
        # What is refused does not spoil the connection: the rest of the body is dropped, the next request is read.
        small = make_request(make_span(2)).SerializeToString()
        second.sendall(bytes(600) + head(content_length=len(small)) + small)
        assert answer_on(second)[0] == 200
    assert store.counts().spans == 2
    assert pending_bytes(http) == 0


@pytest.mark.parametrize("limits", [ReceiverLimits(bytes=100_000)])
def test_a_bomb_is_refused_when_it_outgrows_the_bound(http: httpx.Client, store: Store) -> None:
    bomb = gzip.compress(make_request(make_span(1, **{"x": "y" * 3_000_000})).SerializeToString())
    zipped = PROTOBUF | {"content-encoding": "gzip"}
    with connect(http) as other:
        other.sendall(head(content_length=1000))
        wait_until(lambda: pending_bytes(http) == 1000)
        assert http.post("/v1/traces", content=bomb, headers=zipped).status_code == 503
    wait_until(lambda: pending_bytes(http) == 0)  # who leaves gives his place back
    assert http.post("/v1/traces", content=bomb, headers=zipped).status_code == 200  # alone it may be large
    assert store.counts().spans == 1


@pytest.mark.parametrize("limits", [ReceiverLimits(requests=1)])
def test_a_body_that_does_not_come_gives_its_place_back(
    http: httpx.Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_jax.ingest.http_body.READ_S", 0.3)
    payload = make_request(make_span(1)).SerializeToString()
    with connect(http) as slow:
        slow.sendall(head(content_length=1000) + b"x")
        status, headers = answer_on(slow)
        assert (status, headers["retry-after"]) == (503, "1")
    assert http.post("/v1/traces", content=payload, headers=PROTOBUF).status_code == 200


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


@pytest.mark.parametrize("keys", [{"root": ["admin"], "t": ["traces"]}])
def test_metrics_are_for_this_machine_and_for_admins(http: httpx.Client, store: Store) -> None:
    far = {"x-forwarded-for": "10.0.0.9"}  # uvicorn believes a proxy on this machine
    attempt = claim_one(store)
    for headers, status in (
        ({}, 200),
        (far, 401),
        (far | bearer("wrong"), 401),
        (far | bearer("t"), 403),
        (far | bearer(attempt.api_key), 403),
        (far | bearer("root"), 200),
    ):
        answer = http.get("/metrics/ingest", headers=headers)
        assert (answer.status_code, b"ljx_ingest_spans_stored" in answer.content) == (status, status == 200)


def test_a_store_that_cannot_write_asks_for_a_retry(http: httpx.Client, store: Store) -> None:
    store.close()
    answer = http.post("/v1/traces", content=make_request(make_span(1)).SerializeToString(), headers=PROTOBUF)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
