"""Who gets in: scopes of keys, TLS and mTLS, deadlines, and a drain that answers what is in flight."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import rollout_pb2, rollout_pb2_grpc
from lightning_jax.ingest.auth import Authenticator, Caller, read_keys
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.pace import TooLate
from lightning_jax.ingest.receiver import SpanReceiver
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.ingest.tls import ClientTls, ServerTls
from lightning_jax.run.service import _front
from lightning_jax.serve.config import ServeConfig
from lightning_jax.serve.http import HttpServer
from tests.ingest.conftest import claim_one, make_call, make_rollout
from tests.ingest.otlp import METHOD, Exporter, make_request, make_span
from tests.ingest.processes import ServerProcess

DONE = types.Outcome("succeeded")


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """SQLite alone: nothing here depends on the database."""
    return sqlite_url


def test_a_key_may_call_what_its_scopes_name(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("t: [traces]\nw: [runner, rewards]\nl: [learner]\ne: [calls]\nc: [client]\n")
    attempt = claim_one(store)
    server = IngestServer(store, admin_key="root", keys=read_keys(file))
    server.start()
    clients = {key: IngestClient(server.target, key) for key in ("root", "t", "w", "l", "e", "c")}
    uses: dict[str, tuple[Callable[[IngestClient], object], str]] = {
        "enqueue": (lambda c: c.enqueue([make_rollout("a")]), "root l c"),
        "claim": (lambda c: c.claim("w", 1, 30.0), "root w l c"),
        "reward": (lambda c: c.record_rewards([types.Reward("w1", "r", "", 1.0)]), "root w c"),
        "call": (lambda c: c.record_calls([make_call(attempt, 0)]), "root e"),
        "stream": (lambda c: list(c.sealed("x", idle_s=0.2)), "root l"),
        "policy": (lambda c: c.get_policy(), "root l"),
    }
    for use, allowed in uses.values():
        for key, client in clients.items():
            if key in allowed.split():
                use(client)
            else:
                with pytest.raises(PermissionError, match="it takes one of"):
                    use(client)
    exporter = Exporter(server.target)
    exporter.send(make_request(make_span(1)), "t")
    with pytest.raises(grpc.RpcError) as caught:
        exporter.send(make_request(make_span(2)), "l")
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert store.counts().spans == 1
    exporter.close()
    for client in clients.values():
        client.close()
    server.stop(grace=0.5)


def test_any_key_closes_the_door_to_callers_without_one(store: Store) -> None:
    assert Authenticator(store, None).caller(()) is not None
    assert Authenticator(store, None, {"k": ["traces"]}).caller(()) is None
    assert Authenticator(store, None, {"k": ["traces"]}).caller([("authorization", "Bearer k")]) is not None


def test_unknown_scopes_and_files_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'trace' \(did you mean 'traces'"):
        IngestServer(store, keys={"k": ["trace"]})
    file = tmp_path / "keys.yaml"
    file.write_text("k: traces\n")
    with pytest.raises(ValueError, match="lists of scopes"):
        read_keys(file)
    with pytest.raises(ValueError, match=r"none\.yaml"):
        read_keys(tmp_path / "none.yaml")


def make_certificates(folder: Path) -> None:
    """A CA, a server certificate for 127.0.0.1 and a client certificate, by openssl."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 insists on it
    openssl("req", "-x509", *curve, *usage, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca", "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n")
    for name in ("server", "client"):
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program to make certificates")
def test_tls_and_mutual_tls(store: Store, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "server.pem", "server.key"))
    known = ClientTls(ca, tmp_path / "client.pem", tmp_path / "client.key")
    for tls, let_in, kept_out in (
        (ServerTls(certificate, key), [ClientTls(ca), known], []),
        (ServerTls(certificate, key, client_ca=ca), [known], [ClientTls(ca)]),
    ):
        server = IngestServer(store, tls=tls)
        server.start()
        for trust in let_in:
            with IngestClient(f"https://{server.target}", tls=trust, patience_s=10) as client:
                assert client.rollout_statuses(["nobody"]) == []
        for client in [IngestClient(server.target, patience_s=0, timeout_s=5)] + [
            IngestClient(server.target, patience_s=0, timeout_s=5, tls=trust) for trust in kept_out
        ]:
            with client, pytest.raises(StoreUnavailable):
                client.rollout_statuses(["nobody"])
        server.stop(grace=0.5)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program to make certificates")
def test_the_http_ports_ask_for_certificates_too(store_url: str, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "server.pem", "server.key"))
    known = ClientTls(ca, tmp_path / "client.pem", tmp_path / "client.key")
    settings = _front({"ssl_client_ca": str(ca)}, None, {}, ServerTls(certificate, key))
    policy = HttpServer(Starlette(routes=[Route("/health", lambda _: PlainTextResponse("ok"))]), settings=settings)
    options = ("--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", ca)
    with ServerProcess(store_url, *map(str, options)) as collector:
        for root in (f"127.0.0.1:{policy.start()}", collector.http.removeprefix("http://")):
            transport = httpx.HTTPTransport(verify=known.context(), retries=5)
            with httpx.Client(transport=transport) as client:
                assert client.get(f"https://{root}/health").status_code == 200
            with pytest.raises(httpx.TransportError):  # a server that nobody can trust without a certificate
                httpx.get(f"https://{root}/health", verify=ClientTls(ca).context())
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://{root}/health")
    policy.stop()
    with pytest.raises(ValueError, match="takes TLS"):
        ServeConfig(ssl_client_ca=str(ca))


def test_half_of_a_tls_configuration_is_refused(tmp_path: Path) -> None:
    assert ServerTls.of(None, None, None) is None
    with pytest.raises(ValueError, match=r"certificate and its key"):
        ServerTls.of("cert.pem", None, None)
    with pytest.raises(ValueError, match=r"missing\.pem"):
        ServerTls(tmp_path / "missing.pem", tmp_path / "missing.pem").credentials()
    with pytest.raises(ValueError, match="host:port"):
        IngestClient("ftp://h:1")


def first_done(rpcs: list[grpc.Future]) -> grpc.Future:
    ended: queue.SimpleQueue[grpc.Future] = queue.SimpleQueue()
    for rpc in rpcs:
        rpc.add_done_callback(ended.put)
    return ended.get(timeout=20)


def test_more_rpcs_than_the_limit_are_told_to_come_back_and_the_next_are_not(store: Store) -> None:
    server = IngestServer(store, max_rpcs=2)
    server.start()
    with grpc.insecure_channel(server.target) as channel:
        stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        poll = rollout_pb2.ClaimRolloutsRequest(worker_id="w", max_rollouts=1, lease_s=30.0, wait_s=30.0)
        polls = [stub.ClaimRollouts.future(poll) for _ in range(3)]
        refused = first_done(polls)  # the other two wait
        assert refused.code() == grpc.StatusCode.UNAVAILABLE
        assert "the limit is 2" in refused.details()
        trailers = {key for key, _ in refused.trailing_metadata()}  # exporters repeat only what names a time
        assert {"google.rpc.retryinfo-bin", "grpc-status-details-bin"} <= trailers
        assert sum(waiting.done() for waiting in polls) == 1
        for waiting in polls:
            waiting.cancel()
        ask = rollout_pb2.GetRolloutsRequest(rollout_ids=["nobody"])
        for _ in range(1000):  # the cancellations are on their way
            with contextlib.suppress(grpc.RpcError):
                assert len(stub.GetRollouts(ask, timeout=20).rollouts) == 0
                break
            time.sleep(0.01)
        else:
            pytest.fail("refused for good")
    server.stop(grace=0.5)


def test_an_export_whose_deadline_cannot_be_met_stores_nothing_it_does_not_say(store: Store) -> None:
    server = IngestServer(store)
    server.start()
    block = threading.Event()
    blocked = store._writer.submit(lambda transaction: block.wait(30))
    with grpc.insecure_channel(server.target) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(METHOD)(make_request(make_span(1)).SerializeToString(), timeout=0.3)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        block.set()
        blocked.result()
        channel.unary_unary(METHOD)(make_request(make_span(1)).SerializeToString(), timeout=20)
    assert store.counts().spans == 1
    server.stop(grace=0.5)


def test_a_slow_commit_does_not_lock_deadlines_out_for_good(store: Store) -> None:
    receiver = SpanReceiver(store)
    data = make_request(make_span(1)).SerializeToString()

    async def receive(left_s: float | None) -> None:
        with receiver.admit(len(data)) as admission:
            await receiver.receive(data, Caller(None), ExportTraceServiceRequest.FromString, admission, left_s)

    store._writer.submit(lambda transaction: time.sleep(0.5))
    asyncio.run(receive(None))
    with pytest.raises(TooLate, match="use a longer deadline"):
        asyncio.run(receive(0.01))
    for _ in range(200):
        with contextlib.suppress(TooLate):
            asyncio.run(receive(0.01))
            return
    pytest.fail("every export was refused")


def test_sigterm_answers_what_is_in_flight_and_ends(store_url: str) -> None:
    with ServerProcess(store_url) as process:
        answers: list[grpc.StatusCode] = []
        exporters = [Exporter(process.target) for _ in range(4)]
        first = threading.Barrier(5)

        def send(worker: int) -> None:
            exporters[worker].send(make_request(make_span(worker + 1, trace=9)))
            first.wait(30)
            for number in range(10_000):
                try:
                    exporters[worker].send(make_request(make_span(number + 1, trace=worker + 10)))
                    answers.append(grpc.StatusCode.OK)
                except grpc.RpcError as error:
                    answers.append(error.code())
                    return

        threads = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        first.wait(30)
        time.sleep(0.3)
        started = time.monotonic()
        assert process.end(signal.SIGTERM) == 0
        assert time.monotonic() - started < 10
        for thread in threads:
            thread.join(30)
        for exporter in exporters:
            exporter.close()
    acknowledged = answers.count(grpc.StatusCode.OK)
    assert acknowledged > 0
    # Whoever was not answered was told to come back, and is not half-way in.
    assert set(answers) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    with Store(store_url) as store:
        assert store.counts().spans - 4 >= acknowledged


def test_health_says_when_a_server_is_there(store_url: str) -> None:
    with ServerProcess(store_url) as process, grpc.insecure_channel(process.target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
