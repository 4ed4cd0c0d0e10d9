"""What assembly leaves out is in the Prometheus metrics of the process that trains."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from lightning_jax import types
from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.metrics import IngestMetrics
from lightning_jax.ingest.receiver import SpanReceiver
from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.run.collect import Collector
from tests.ingest.conftest import make_call, make_rollout


def aborted(store: Store) -> float:
    """How many aborted calls the metrics say were left out."""
    text = IngestMetrics(SpanReceiver(store), store).text().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = [
        sample.value
        for sample in samples
        if sample.name == "ljx_assemble_quarantined_total" and sample.labels == {"kind": "call", "reason": "aborted"}
    ]
    return sum(found)


def test_what_assembly_leaves_out_is_counted_by_kind_and_reason(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        server = IngestServer(store, http_root="http://127.0.0.1:9")
        server.start()

        def run_agent() -> None:
            (attempt,) = claimed()
            for number in range(2):
                store.record_call(replace(make_call(attempt, number), finish_reason="abort")).result()
            store.complete(attempt.attempt_id, types.Outcome("succeeded")).result()

        def claimed() -> list[types.Attempt]:
            while not (found := store.claim("w", 1, 60.0, "http://h").result()):
                store.claimable_signal.wait(store.claimable_signal.count, 0.1)
            return found

        before = aborted(store)
        agent = threading.Thread(target=run_agent)
        agent.start()
        with IngestClient(server.target) as client:
            (trajectory,) = Collector(client, AgentNaming()).collect([make_rollout("r")])
        agent.join(30)
        assert trajectory.transitions == ()
        assert aborted(store) == before + 2
        server.stop(grace=0.5)
