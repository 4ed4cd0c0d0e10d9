"""`python -m lightning_jax.traces`: import what real agents sent, look at it, export it."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from rich.console import Console

from lightning_jax import types
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.traces.__main__ import main
from tests.ingest.conftest import claim_one, make_call

GOLDEN = Path(__file__).parents[1] / "golden" / "agent_spans.jsonl"


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """SQLite alone: nothing here depends on the database."""
    return sqlite_url


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    status = main(words, Console(file=out, width=300))
    return status, out.getvalue()


def write_otlp(path: Path, *captures: str) -> int:
    """Captures as an OTLP JSON file, a line a span, ids in hexadecimal."""
    lines = []
    for line in GOLDEN.read_text().splitlines():
        record = json.loads(line)
        if record["capture"] in captures:
            span = Span.FromString(base64.b64decode(record["span"]))
            fields = {
                "traceId": span.trace_id.hex(),
                "spanId": span.span_id.hex(),
                "parentSpanId": span.parent_span_id.hex(),
                "name": span.name,
                "startTimeUnixNano": str(span.start_time_unix_nano),
                "endTimeUnixNano": str(span.end_time_unix_nano),
                "attributes": [
                    {"key": item.key, "value": {"stringValue": item.value.string_value}}
                    for item in span.attributes
                    if item.value.HasField("string_value")
                ],
            }
            scope = {"scope": {"name": record["scope"]}, "spans": [fields]}
            lines.append(json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}))
    path.write_text("\n".join(lines) + "\n")
    return len(lines)


def test_import_show_quarantine_and_export(server: IngestServer, store: Store, tmp_path: Path) -> None:
    attempt = claim_one(store)
    for number, call_id in enumerate(("fake0121", "fake0122", "fake0123")):
        call = make_call(attempt, number)
        fields = {name: getattr(call, name) for name in call.__dataclass_fields__}
        store.record_call(types.Call(**{**fields, "call_id": call_id})).result()
    count = write_otlp(tmp_path / "spans.jsonl", "agents__oi_agents", "openai__openai_v2")
    files = [str(tmp_path / "spans.jsonl"), "--target", server.target, "--attempt", f"r/{attempt.attempt_id}"]
    for _ in range(2):
        assert run("import", *files) == (0, f"{count} spans sent, 0 rejected\n")
    assert store.counts().spans == count
    status, text = run("show", "r", "--store", store.url)
    assert status == 0
    assert "not sealed yet" in text
    store.record_rewards([types.Reward("w", "r", "", 1.0, {"exact": 1.0}, "fake0122")]).result()
    store.complete(attempt.attempt_id, types.Outcome("succeeded")).result()
    status, text = run("show", "r", "--store", store.url)
    assert status == 0
    for word in ("agent triage_agent", "agent search_agent", "#1 fake0122", "7+5 tokens", "reward 1", "v2 stop"):
        assert word in text
    assert "credit" not in text
    status, text = run("quarantine", "--store", store.url)
    assert status == 0
    assert "span no_call" in text  # of the second capture no call is stored here
    status, text = run("export", str(tmp_path / "out"), "--store", store.url)
    assert status == 0
    transitions = pq.read_table(tmp_path / "out" / "transitions.parquet").to_pylist()
    assert [(row["call_id"], row["agent"], row["reward"]) for row in transitions] == [
        ("fake0121", "triage_agent", 0.0),
        ("fake0122", "search_agent", 1.0),
        ("fake0123", "search_agent", 0.0),
    ]
    assert transitions[0]["response_ids"] == list(make_call(attempt, 0).response_ids)
    spans = pq.read_table(tmp_path / "out" / "spans.parquet").to_pylist()
    assert len(spans) == count
    assert {row["call_id"] for row in spans} == {"fake0121", "fake0122", "fake0123", None}


def test_a_runs_folder_adds_credit_and_advantage(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        attempt = claim_one(store)
        call = make_call(attempt, 0)
        store.record_call(call).result()
        store.complete(attempt.attempt_id, types.Outcome("succeeded")).result()
        (tmp_path / "transitions").mkdir()
        rows = [{"rollout_id": "r", "call_id": call.call_id, "credit": 0.25, "advantage": -1.5}]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "transitions" / "step-000001.parquet")
        status, text = run("show", "r", "--store", str(tmp_path))
    assert status == 0
    assert "credit 0.25 · advantage -1.5" in text


def test_what_is_not_there_is_said(tmp_path: Path, sqlite_url: str) -> None:
    status, text = run("show", "r", "--store", str(tmp_path / "nothing"))
    assert (status, "no store at" in text) == (2, True)
    Store(sqlite_url).close()
    status, text = run("show", "nobody", "--store", sqlite_url)
    assert (status, "no rollout 'nobody'" in text) == (2, True)
    (tmp_path / "bad.json").write_text('{"resourceSpans": []}\nnonsense\n')
    status, text = run("import", str(tmp_path / "bad.json"), "--target", "127.0.0.1:1")
    assert (status, "bad.json:2" in text) == (2, True)


@pytest.mark.parametrize("attempt", ["r", "a/b/c"])
def test_a_malformed_attempt_is_refused(attempt: str) -> None:
    assert run("import", "x", "--target", "127.0.0.1:1", "--attempt", attempt)[0] == 2
