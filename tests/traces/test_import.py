"""Importing OTLP files: over TLS, and in parts that receivers take."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.tls import ServerTls
from lightning_jax.traces.otlp_files import _parts, send
from tests.ingest.otlp import make_request, make_span
from tests.ingest.test_access import make_certificates


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program to make certificates")
def test_import_speaks_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(tmp_path)
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        server = IngestServer(store, tls=ServerTls(tmp_path / "server.pem", tmp_path / "server.key"))
        server.start()
        monkeypatch.setenv("LJX_TLS_CA", str(tmp_path / "ca.pem"))
        target = f"https://127.0.0.1:{server.port}"
        assert send(target, iter([make_request(make_span(1))]), "", None) == (1, 0)
        with pytest.raises(ConnectionError):
            send(f"127.0.0.1:{server.port}", iter([make_request(make_span(2))]), "", None)
        assert store.counts().spans == 1
        server.stop(grace=0.5)


def test_what_is_too_large_goes_in_parts_and_nothing_is_lost(tmp_path: Path) -> None:
    whole = ExportTraceServiceRequest()
    for trace in (1, 2):
        spans = (make_span(number, trace=trace, **{"x": "y" * 1000 * number}) for number in range(1, 10))
        whole.MergeFrom(make_request(*spans, resource={"service.name": f"agent {trace}"}))
    whole.resource_spans[0].schema_url = "https://example.org/1"
    most = 4000
    parts = list(_parts(whole, most))
    assert len(parts) > 2
    found = []
    for part in parts:
        (resource,) = part.resource_spans
        (scope,) = resource.scope_spans
        assert sum(span.ByteSize() for span in scope.spans) <= most or len(scope.spans) == 1
        found += [(resource.resource, resource.schema_url, scope.scope, span) for span in scope.spans]
    assert found == [
        (resource.resource, resource.schema_url, scope.scope, span)
        for resource in whole.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        server = IngestServer(store)
        server.start()
        assert send(server.target, iter([whole]), "", None, most_bytes=most) == (18, 0)
        assert store.counts().spans == 18
        # A file beyond what one request may hold.
        spans = (make_span(number, trace=3, **{"x": "y" * 10**7}) for number in range(1, 9))
        assert send(server.target, iter([make_request(*spans)]), "", None) == (8, 0)
        assert store.counts().spans == 26
        server.stop(grace=0.5)
