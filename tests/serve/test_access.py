"""Who gets in over HTTP, how many at once, what the log says of them; and TLS from a client's and an agent's side."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path

import httpx
import pytest

from lightning_jax.client import LightningClient
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.tls import ServerTls
from lightning_jax.run.service import Service
from lightning_jax.runner import CommandAgent, Runner
from lightning_jax.serve.app import ServeConfig, create_app
from lightning_jax.serve.http import HttpServer
from lightning_jax.serve.request_log import RequestLog
from lightning_jax.types import Rollout, SamplingDefaults
from tests.ingest.test_access import make_certificates
from tests.serve.conftest import ENGINE, MODEL, MemorySink, eventually, policy, serving
from tests.serve.test_chat import MESSAGES, post

KEYS = {
    "bench": {"key": "s3cret-infer", "scopes": ["infer"]},
    "collector": {"key": "s3cret-ingest", "scopes": ["ingest"]},
    "ops": {"key": "s3cret-admin", "scopes": ["admin"]},
}
BODY = {"messages": MESSAGES, "max_tokens": 2}


def test_keys_have_scopes(engine, tokenizer):
    with serving(engine, tokenizer, keys=KEYS, anonymous=False) as server:

        def answer(key: str | None) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return httpx.post(f"{server.root}/v1/chat/completions", json=BODY, headers=headers)

        statuses = [answer(k).status_code for k in (None, "s3cret", "s3cret-ingest", "s3cret-infer", "s3cret-admin")]
        assert statuses == [401, 401, 403, 200, 200]
        refused = answer("s3cret-ingest")
        assert refused.json()["error"]["code"] == "insufficient_scope"
        assert "collector" in refused.text
        assert "s3cret" not in refused.text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bench": {"key": "s3cret", "scopes": ["infre"]}}, "did you mean 'infer'"),
        ({"bench": {"key": "s3cret"}}, "scopes"),
        ({"bench": "s3cret"}, "must be"),
        ({"bench": {"key": "", "scopes": ["infer"]}}, "not empty"),
    ],
)
def test_a_wrong_key_entry_is_named_without_its_secret(keys, message):
    with pytest.raises(ValueError, match=message) as caught:
        ServeConfig.from_mapping({"keys": keys})
    assert "bench" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_other_machines_are_kept_out_without_keys(engine, tokenizer):
    settings = ServeConfig.from_mapping({"keys": KEYS, "admin_key": "s3cret"})
    assert "s3cret" not in repr(settings)
    app = create_app(engine, tokenizer, MemorySink(), settings)
    with pytest.raises(ValueError, match="LJX_API_KEY"):
        HttpServer(app, host="0.0.0.0")
    with pytest.raises(ValueError, match="lets anybody in"):
        HttpServer(app, host="0.0.0.0", settings=ServeConfig(admin_key="x", open=True))
    HttpServer(app, host="0.0.0.0", settings=settings)
    HttpServer(app, host="::1")


def test_more_requests_than_may_be_in_progress_come_back_later(engine, tokenizer):
    with serving(engine, tokenizer, max_concurrent=2) as server:
        server.sink.hold = True
        threads = [
            threading.Thread(target=post, args=(server, {**BODY, "stream": stream}, number))
            for number, stream in enumerate((False, True))
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(server.sink.held) == 2)
        refused = post(server, BODY, 2)
        assert refused.status_code == 429
        assert float(refused.headers["retry-after"]) <= 1
        server.sink.release()
        for thread in threads:
            thread.join(20)
        assert post(server, BODY, 2).status_code == 200
        assert [c.sequence for c in server.sink.of(2)] == [0]


def test_every_answer_is_a_line_of_json_without_keys(engine, tokenizer, tmp_path):
    sink, log = MemorySink(), RequestLog(tmp_path)
    sink.add(0)
    settings = ServeConfig.from_mapping({"keys": KEYS})
    http = HttpServer(create_app(engine, tokenizer, sink, settings, log=log))
    root = f"http://127.0.0.1:{http.start()}/v1/chat/completions"
    keys = ("s3cret-infer", "ljx-key-0", "s3cret-ingest", "ljx-wrong", "sk-placeholder")
    for key in keys:
        httpx.post(root, json=BODY, headers={"authorization": f"Bearer {key}"})
    http.stop()
    log.close()
    text = (tmp_path / "lightning_server.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 403, 401, 200]
    assert [line.get("caller") for line in lines] == ["key:bench", "attempt:at-0", None, None, "anonymous"]
    assert lines[1]["call_id"] == sink.of(0)[0].call_id
    assert lines[2]["error"] == "insufficient_scope"
    assert all(line["event"] == "chat" and line["ms"] > 0 and line["time"] > 1.7e9 for line in lines)
    assert not any(key in text for key in keys)


AGENT = """
import json, os, openai
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
with provider.get_tracer("program").start_as_current_span("plan"):
    answer = openai.OpenAI().chat.completions.create(
        model="policy", max_tokens=2, messages=[{"role": "user", "content": "hello"}]
    )
provider.shutdown()
print(json.dumps({"id": answer.id}))
"""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program to make certificates")
def test_clients_traces_and_agent_programs_speak_tls(tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One server; a LightningClient with its spans, and a program that knows nothing but its environment."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="pip install 'lightning_jax[trace]'")
    make_certificates(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.setenv("LJX_TLS_CA", str(tmp_path / "ca.pem"))
    service = Service(
        MODEL, tokenizer, store_url=f"sqlite:///{tmp_path / 'store.sqlite'}", engine=ENGINE, admin_key="adm",
        keys={"in": ["infer"], "out": ["ingest"]}, log_folder=tmp_path,
        tls=ServerTls(tmp_path / "server.pem", tmp_path / "server.key"),
    )  # fmt: skip
    try:
        addresses = service.start(policy())
        assert addresses.http.startswith("https://")
        with LightningClient(addresses.http, "adm") as client:
            assert client.ingest.target == addresses.grpc
            with client.rollout({"question": "salt"}) as rollout:
                provider = client.trace(api_key=rollout.api_key)
                with provider.get_tracer("client").start_as_current_span("plan"):
                    answer = rollout.openai().chat.completions.create(model="m", messages=MESSAGES, max_tokens=2)
                provider.shutdown()
            program = Rollout("ro-program", "task", 0, "train", 1, {}, SamplingDefaults(), 0, 120.0)
            client.ingest.enqueue([program])
            with IngestClient(addresses.grpc, api_key="adm") as worker:
                agent = CommandAgent(f"{sys.executable} {tmp_path / 'agent.py'}", otlp_endpoint=addresses.grpc)
                runner = Runner(worker, agent, concurrency=1)
                runner.start()
                own, other = list(_first(client.ingest.sealed("test", 0, idle_s=120), 2))
                runner.stop()
        assert own.calls[0].call_id == answer.id.removeprefix("chatcmpl-")
        assert other.outcome.status == "succeeded", other.outcome.reason
        assert other.outcome.output == {"id": f"chatcmpl-{other.calls[0].call_id}"}
        scopes = [{span.scope for span in sealed.spans} for sealed in (own, other)]
        assert "client" in scopes[0]
        assert scopes[1] == {"program"}
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{addresses.http}/healthcheck")  # one that does not know the authority
        with LightningClient(addresses.http, "in") as bench:
            bench.openai().chat.completions.create(model="m", messages=MESSAGES, max_tokens=2)
            with pytest.raises(PermissionError, match="scopes"):
                bench.ingest.list_calls(own.attempt_id)
        with LightningClient(addresses.http, "out") as collector:
            assert [c.call_id for c in collector.ingest.list_calls(own.attempt_id)] == [own.calls[0].call_id]
    finally:
        service.stop()
    assert '"event": "chat"' in (tmp_path / "lightning_server.log").read_text()


def _first(items, count):
    for _ in range(count):
        yield next(items)
