"""What agents are called when people look: by the study's patterns, by a file's, and by spans that came late."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from lightning_jax import types
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.traces.__main__ import main
from tests.ingest.conftest import claim_one, make_call
from tests.ingest.otlp import Exporter, make_request, make_span

STUDY = """
from lightning_jax.run.study import Study

def load(task):
    return Study("s", "exact", "", (), (), (), {}, agents={"writer": task["pattern"]})
"""


def run(*words: str) -> str:
    out = io.StringIO()
    assert main(words, Console(file=out, width=300)) == 0, out.getvalue()
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with a sealed rollout of one call, whose agent the prompt alone names; a span came late."""
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        attempt = claim_one(store)
        request = {"messages": [{"role": "system", "content": "You write SQL."}]}
        store.record_call(replace(make_call(attempt, 0), request=request)).result()
        server = IngestServer(store)
        server.start()
        store.complete(attempt.attempt_id, types.Outcome("succeeded")).result()
        exporter = Exporter(server.target)
        late = make_span(1, **{"openinference.span.kind": "LLM", "agent.name": "late_name"})
        late.attributes.add(key="output.value").value.string_value = '{"id": "chatcmpl-r.1-c0"}'
        exporter.send(make_request(late), attempt.api_key)
        exporter.close()
        server.stop(grace=0.5)
    return tmp_path


def exported(folder: Path, *words: str) -> list[str]:
    run("export", str(folder / "out"), "--store", str(folder), *words)
    return [row["agent"] for row in pq.read_table(folder / "out" / "transitions.parquet").to_pylist()]


def test_a_late_span_names_what_has_no_other_name(folder: Path) -> None:
    assert "agent late_name" in run("show", "r", "--store", str(folder))
    assert exported(folder) == ["late_name"]


def test_patterns_of_a_file_name_agents_and_late_spans_leave_them(folder: Path) -> None:
    patterns = folder / "patterns.yaml"
    patterns.write_text("writer: ^You write\n")
    words = ("--patterns", str(patterns))
    assert "agent writer" in run("show", "r", "--store", str(folder), *words)
    assert exported(folder, *words) == ["writer"]
    patterns.write_text("- a list\n")
    out = io.StringIO()
    assert main(("quarantine", "--store", str(folder), *words), Console(file=out, width=300)) == 2
    assert "must map agent names" in out.getvalue()


def test_a_runs_folder_names_agents_as_its_study_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a_study_of_its_own.py").write_text(STUDY)
    monkeypatch.syspath_prepend(str(folder))
    task = {"study": "a_study_of_its_own", "pattern": "^You write"}
    (folder / "config.yaml").write_text(yaml.safe_dump({"task": task}))
    assert "agent writer" in run("show", "r", "--store", str(folder))
    assert exported(folder) == ["writer"]
    (folder / "config.yaml").write_text(yaml.safe_dump({"task": {"study": "not_here"}}))
    text = run("show", "r", "--store", str(folder))
    assert "give --patterns" in text
    assert "agent late_name" in text
