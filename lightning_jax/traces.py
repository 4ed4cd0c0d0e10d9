"""Look at traces, and move them: what an agent did, what was put aside and why, tables for notebooks, OTLP files.

    python -m lightning_jax.traces show ROLLOUT --store RUN_FOLDER
    python -m lightning_jax.traces quarantine --store sqlite:///traces.sqlite
    python -m lightning_jax.traces export FOLDER --store RUN_FOLDER
    python -m lightning_jax.traces import FILE... --target HOST:PORT [--attempt ROLLOUT/ATTEMPT]

`--store` is a run's folder (credit and advantages are then shown too) or the store's SQLAlchemy URL. All but `import`
only read, also while a server writes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from lightning_jax.assemble.joins import SpanId
from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import Assembled, assemble
from lightning_jax.ingest.otlp_json import request_of_document
from lightning_jax.ingest.placement import ATTEMPT_ATTRIBUTE, ROLLOUT_ATTRIBUTE, span_count
from lightning_jax.ingest.reader import StoreReader
from lightning_jax.ingest.trace_service import SERVICE
from lightning_jax.types import SealedAttempt, Transition

_NAMES = AgentNaming()


def show(reader: StoreReader, rollout_id: str, scores: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print one rollout as a tree. scores: see `scores_of`. ValueError for a rollout that the store does not know."""
    sealed = reader.rollout(rollout_id)
    if sealed is None:
        raise ValueError(f"the store knows no rollout {rollout_id!r}")
    assembled = assemble(sealed, _NAMES)
    trajectory, rollout = assembled.trajectory, sealed.rollout
    outcome = f"{sealed.outcome.status}{': ' + sealed.outcome.reason if sealed.outcome.reason else ''}"
    tree = Tree(
        f"[bold]{rollout.rollout_id}[/] task {rollout.task_id} sample {rollout.sample} {rollout.mode} "
        f"step {rollout.step} attempt {sealed.attempt_id or '-'} · {outcome}"
    )
    if trajectory.reported:
        tree.add("reported " + " ".join(f"{name}={value:g}" for name, value in trajectory.reported.items()))
    start = min((call.started_ns for call in sealed.calls), default=0)
    branches: dict[tuple[str, ...], Tree] = {(): tree}
    for transition in trajectory.transitions:
        branch = _branch(branches, (*transition.parents[::-1], transition.agent))
        node = branch.add(_line(transition, start, scores.get(transition.call_id, {})))
        for tool in transition.tools:
            style = "green" if tool.verdict == "ok" else "red"
            code = f" HTTP {tool.status_code}" if tool.status_code else ""
            took = f" {tool.latency_s:.3f} s" if tool.latency_s is not None else ""
            node.add(f"tool {tool.name or '?'} [{style}]{tool.verdict}[/]{code}{took} {_short(tool.arguments)}")
    late = reader.late_spans(sealed.attempt_id, len(sealed.spans)) if sealed.cursor else ()
    spans = f"{len(assembled.reading.spans)} spans, {len(assembled.reading.calls)} of them of calls"
    tree.add(spans + (f"; {len(late)} came after the seal" if late else ""))
    for (kind, reason), count in sorted(assembled.reasons().items()):
        tree.add(f"[yellow]put aside: {count} {kind} {reason}[/]")
    console.print(tree)


def _branch(branches: dict[tuple[str, ...], Tree], path: tuple[str, ...]) -> Tree:
    """The tree node of a line of agents; made where it is new."""
    for length in range(1, len(path) + 1):
        if path[:length] not in branches:
            branches[path[:length]] = branches[path[: length - 1]].add(f"agent [cyan]{path[length - 1]}[/]")
    return branches[path]


def _line(transition: Transition, start_ns: int, score: Mapping[str, Any]) -> str:
    took = (transition.ended_ns - transition.started_ns) / 1e9
    words = [
        f"#{transition.index} {transition.call_id}",
        f"at {(transition.started_ns - start_ns) / 1e9:.3f} s for {took:.3f} s",
        f"{len(transition.prompt_ids)}+{len(transition.response_ids)} tokens",
        f"v{transition.policy_version} {transition.finish_reason}",
    ]
    if transition.node:
        words.append(f"node {transition.node}")
    if transition.reward or transition.components:
        words.append(f"reward {transition.reward:g}")
    words += [f"{name} {score[name]:.4g}" for name in ("credit", "advantage") if score.get(name) is not None]
    return " · ".join(words) + f"\n{_short(transition.text, 100)}"


def _short(text: str, length: int = 60) -> str:
    plain = " ".join(text.split()).replace("[", "\\[")
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def quarantine(reader: StoreReader, console: Console, limit: int) -> int:
    """List what was put aside: on its way in, and when trajectories were built. Returns how much that was."""
    found = [(item.kind, item.reason, item.identity, item.detail) for item in reader.quarantine()]
    for sealed in reader.sealed():
        place = f"rollout {sealed.rollout.rollout_id} attempt {sealed.attempt_id}"
        found += [(item.kind, item.reason, item.identity, place) for item in assemble(sealed, _NAMES).quarantined]
    table = Table("kind", "reason", "identity", "detail")
    for row in found[:limit]:
        table.add_row(*(_short(text, 100) for text in row))
    console.print(table)
    for (kind, reason), count in sorted(Counter((kind, reason) for kind, reason, *_ in found).items()):
        console.print(f"{count} {kind} {reason}")
    return len(found)


def export(reader: StoreReader, folder: Path) -> dict[str, int]:
    """Write transitions.parquet and spans.parquet; returns the rows of each."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = {"transitions": _transition_rows, "spans": _span_rows}
    writers: dict[str, pq.ParquetWriter] = {}
    counts = dict.fromkeys(makers, 0)
    for sealed in reader.sealed():
        assembled = assemble(sealed, _NAMES)
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
            ("started_ns", pa.int64()), ("ended_ns", pa.int64()), ("text", pa.string()),
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
        "finish_reason", "policy_version", "temperature", "started_ns", "ended_ns", "text",
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


def read_otlp(path: Path) -> Iterator[ExportTraceServiceRequest]:
    """The requests in an OTLP JSON file: one document, or one a line. ValueError names the line."""
    text = path.read_text(encoding="utf-8")
    try:
        documents = [(1, json.loads(text))]
    except ValueError:
        documents = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                documents += [(number, json.loads(line))] if line.strip() else []
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from error
    for number, document in documents:
        try:
            yield request_of_document(document)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error


def send(target: str, requests: Iterator[ExportTraceServiceRequest], attempt: str, key: str | None) -> tuple[int, int]:
    """Export requests to a server; returns (spans sent, rejected). attempt: "" or rollout/attempt, whose they are."""
    sent = rejected = 0
    metadata = [("authorization", f"Bearer {key}")] if key else []
    with grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/Export", ExportTraceServiceRequest.SerializeToString, ExportTraceServiceResponse.FromString
        )
        for request in requests:
            for resource in request.resource_spans if attempt else ():
                for name, value in zip((ROLLOUT_ATTRIBUTE, ATTEMPT_ATTRIBUTE), attempt.split("/", 1), strict=True):
                    resource.resource.attributes.add(key=name).value.string_value = value
            try:
                response = method(request, metadata=metadata, timeout=60)
            except grpc.RpcError as error:
                raise ConnectionError(f"{target} answered {error.code().name}: {error.details()}") from error
            sent += span_count(request)
            rejected += response.partial_success.rejected_spans
    return sent, rejected


def scores_of(folder: Path, rollout_id: str) -> dict[str, dict[str, Any]]:
    """call id → credit and advantage of a rollout's transitions, from the tables of a run's folder; {} where none."""
    if not (folder / "transitions").is_dir():
        return {}
    columns = ["call_id", "credit", "advantage"]
    table = pq.read_table(folder / "transitions", columns=columns, filters=[("rollout_id", "=", rollout_id)])
    return {row["call_id"]: row for row in table.to_pylist()}


def _url(store: str) -> str:
    return store if "://" in store else f"sqlite:///{Path(store) / 'store.sqlite'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightning_jax.traces", description=str(__doc__).partition("\n")[0],
        epilog="For import the key is taken from LJX_API_KEY.",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("show", help="print a rollout as a tree")
    one.add_argument("rollout")
    aside = commands.add_parser("quarantine", help="list what was put aside, with reasons")
    aside.add_argument("--limit", type=int, default=200, help="rows printed, default %(default)s")
    out = commands.add_parser("export", help="write transitions.parquet and spans.parquet")
    out.add_argument("folder", type=Path)
    for command in (one, aside, out):
        command.add_argument("--store", required=True, help="a run's folder, or the store's SQLAlchemy URL")
    into = commands.add_parser("import", help="send OTLP JSON files to a server")
    into.add_argument("files", type=Path, nargs="+")
    into.add_argument("--target", required=True, help="host:port of ingestion (gRPC)")
    into.add_argument("--attempt", default="", metavar="ROLLOUT/ATTEMPT", help="whose spans they are")
    return parser


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(argv)
    console = console or Console(highlight=False)
    try:
        if options.command == "import":
            if options.attempt and options.attempt.count("/") != 1:
                raise ValueError(f"--attempt is {options.attempt!r}; write ROLLOUT/ATTEMPT")
            requests = (request for file in options.files for request in read_otlp(file))
            sent, rejected = send(options.target, requests, options.attempt, os.environ.get("LJX_API_KEY"))
            console.print(f"{sent} spans sent, {rejected} rejected")
            return 0
        with StoreReader(_url(options.store)) as reader:
            if options.command == "show":
                scores = {} if "://" in options.store else scores_of(Path(options.store), options.rollout)
                show(reader, options.rollout, scores, console)
            elif options.command == "quarantine":
                quarantine(reader, console, options.limit)
            else:
                counts = export(reader, options.folder)
                console.print(", ".join(f"{count} {name}" for name, count in counts.items()))
    except (ValueError, OSError) as error:
        console.print(f"[red]{_short(str(error), 500)}[/]")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
