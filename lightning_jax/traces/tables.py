"""Transitions and spans as Parquet, a row each, for notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lightning_jax.assemble.joins import SpanId
from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import Assembled, assemble
from lightning_jax.ingest.reader import StoreReader
from lightning_jax.traces.tree import NO_NAMES
from lightning_jax.types import SealedAttempt


def export(reader: StoreReader, folder: Path, naming: AgentNaming = NO_NAMES) -> dict[str, int]:
    """Write transitions.parquet and spans.parquet; returns the rows of each."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = {"transitions": _transition_rows, "spans": _span_rows}
    writers: dict[str, pq.ParquetWriter] = {}
    counts = dict.fromkeys(makers, 0)
    for sealed in reader.sealed():
        assembled = assemble(sealed, naming, reader.late_spans(sealed.attempt_id, len(sealed.spans)))
        for name, make in makers.items():
            rows = list(make(sealed, assembled))
            if rows:
                table = pa.Table.from_pylist(rows, schema=_SCHEMAS[name])
                if name not in writers:
                    writers[name] = pq.ParquetWriter(folder / f"{name}.parquet", table.schema)
                writers[name].write_table(table)
                counts[name] += len(rows)
    for writer in writers.values():
        writer.close()
    return counts


_IDENTITY = [("rollout_id", pa.string()), ("attempt_id", pa.string()), ("call_id", pa.string())]
_SCHEMAS = {
    "transitions": pa.schema(
        [
            *_IDENTITY, ("task_id", pa.string()), ("sample", pa.int64()), ("step", pa.int64()), ("mode", pa.string()),
            ("status", pa.string()), ("index", pa.int64()), ("agent", pa.string()), ("node", pa.string()),
            ("parents", pa.list_(pa.string())), ("prompt_ids", pa.list_(pa.int32())),
            ("response_ids", pa.list_(pa.int32())), ("rollout_logps", pa.list_(pa.float32())),
            ("reward", pa.float64()), ("components", pa.string()), ("reported", pa.string()),
            ("tools", pa.list_(pa.struct([
                ("name", pa.string()), ("arguments", pa.string()), ("verdict", pa.string()),
                ("status_code", pa.int64()), ("latency_s", pa.float64()),
            ]))),
            ("finish_reason", pa.string()), ("policy_version", pa.int64()), ("temperature", pa.float64()),
            ("kept_mass", pa.float64()), ("started_ns", pa.int64()), ("ended_ns", pa.int64()), ("text", pa.string()),
        ]
    ),
    "spans": pa.schema(
        [
            *_IDENTITY, ("trace_id", pa.string()), ("span_id", pa.string()), ("parent_id", pa.string()),
            ("scope", pa.string()), ("name", pa.string()), ("kind", pa.string()), ("agent", pa.string()),
            ("tool", pa.string()), ("error", pa.string()), ("status_code", pa.int64()),
            ("prompt_tokens", pa.int64()), ("completion_tokens", pa.int64()), ("start_ns", pa.int64()),
            ("end_ns", pa.int64()), ("quarantined", pa.string()),
        ]
    ),
}  # fmt: skip


def _transition_rows(sealed: SealedAttempt, assembled: Assembled) -> Iterator[dict[str, Any]]:
    trajectory = assembled.trajectory
    shared = {
        "rollout_id": trajectory.rollout_id, "attempt_id": sealed.attempt_id, "task_id": trajectory.task_id,
        "sample": trajectory.sample, "step": trajectory.step, "mode": trajectory.mode,
        "status": trajectory.outcome.status, "reported": json.dumps(dict(trajectory.reported)),
    }  # fmt: skip
    plain = (
        "call_id", "index", "agent", "node", "parents", "prompt_ids", "response_ids", "rollout_logps", "reward",
        "finish_reason", "policy_version", "temperature", "kept_mass", "started_ns", "ended_ns", "text",
    )  # fmt: skip
    for transition in trajectory.transitions:
        tools = [
            {name: getattr(tool, name) for name in ("name", "arguments", "verdict", "status_code", "latency_s")}
            for tool in transition.tools
        ]
        yield {
            **shared, **{name: getattr(transition, name) for name in plain},
            "components": json.dumps(dict(transition.components)), "tools": tools,
        }  # fmt: skip


def _span_rows(sealed: SealedAttempt, assembled: Assembled) -> Iterator[dict[str, Any]]:
    reading = assembled.reading
    for identity, span in reading.spans.items():
        facts = reading.facts[identity]
        yield {
            "rollout_id": span.rollout_id, "attempt_id": sealed.attempt_id,
            "call_id": reading.calls.get(identity), "quarantined": reading.quarantined.get(identity),
            **_span_identity(identity), "parent_id": span.parent_id.hex(), "scope": span.scope, "name": span.name,
            "start_ns": span.start_ns, "end_ns": span.end_ns,
            **{name: getattr(facts, name) for name in (
                "kind", "agent", "tool", "error", "status_code", "prompt_tokens", "completion_tokens"
            )},
        }  # fmt: skip


def _span_identity(identity: SpanId) -> dict[str, str]:
    return {"trace_id": identity[0].hex(), "span_id": identity[1].hex()}
