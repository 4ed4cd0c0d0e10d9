"""Spans: stored whole and once, by (trace_id, span_id). They enrich calls; they are never the truth about tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, delete, select, text, update

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.database import insert_new
from lightning_jax.ingest.quarantine import Quarantine, early_spans, put_aside, release
from lightning_jax.ingest.records import span_of, span_row
from lightning_jax.ingest.writer import Transaction

# Built once: composing a statement costs more than running it, and learners ask for each rollout.
_OF_ATTEMPT = (
    select(schema.spans)
    .where(schema.spans.c.attempt_id == bindparam("attempt"), schema.spans.c.id <= bindparam("last"))
    .order_by(schema.spans.c.id)
)
# The condition as text: databases use a partial index only for its very words, not for a bound parameter.
_UNPLACED = (
    select(schema.spans.c.trace_id)
    .where(text("rollout_id = ''"), schema.spans.c.trace_id.in_(bindparam("traces", expanding=True)))
    .distinct()
)


def record(
    transaction: Transaction,
    spans: Sequence[types.Span],
    aside: Sequence[Quarantine],
) -> int:
    """Insert the spans that are new and note why some could not be placed. Returns how many were new.

    Unplaced spans of the same traces, stored now or earlier, go where the placed ones are (see `adopt`).
    """
    added = insert_new(transaction.connection, schema.spans, [span_row(span) for span in spans])
    put_aside(transaction, aside)
    adopt(transaction, {span.trace_id for span in spans})
    return added


def adopt(transaction: Transaction, traces: Collection[bytes]) -> int:
    """Give unplaced spans to the one attempt that all placed spans of their trace belong to; returns how many.

    They are stored anew, after everything else: an attempt that was sealed meanwhile keeps the record it had. For
    traces without unplaced spans, which is nearly all, this is one look into an index that is nearly empty.
    """
    connection, table = transaction.connection, schema.spans
    waiting = sorted(_unplaced(connection, list(traces)))
    adopted = 0
    for trace_id, pairs in owners(connection, waiting).items():
        if len(pairs) == 1:
            rollout_id, attempt_id = next(iter(pairs))
            unplaced = (table.c.trace_id == trace_id) & (table.c.rollout_id == "")
            found = [
                span_of(row)
                for row in connection.execute(select(table).where(unplaced).order_by(table.c.id)).mappings()
            ]
            connection.execute(delete(table).where(unplaced))
            placed = [replace(span, rollout_id=rollout_id, attempt_id=attempt_id) for span in found]
            adopted += insert_new(connection, table, [span_row(span) for span in placed])
            release(transaction, "span", [span_identity(trace_id, span.span_id) for span in found])
    return adopted


def _unplaced(connection: Connection, traces: Sequence[bytes]) -> set[bytes]:
    """Those of the traces that have unplaced spans."""
    found: set[bytes] = set()
    for start in range(0, len(traces), 500):
        some = connection.execute(_UNPLACED, {"traces": traces[start : start + 500]}).scalars()
        found.update(bytes(trace_id) for trace_id in some)
    return found


def adopt_named(transaction: Transaction, attempts: Mapping[str, str]) -> None:
    """Place the spans that came before the attempts (id -> rollout id) whose names they carry."""
    table = schema.spans
    for attempt_id, identities in early_spans(transaction.connection, list(attempts)).items():
        values = {"rollout_id": attempts[attempt_id], "attempt_id": attempt_id}
        for identity in identities:
            trace_id, span_id = (bytes.fromhex(part) for part in identity.split("/"))
            unplaced = (table.c.trace_id == trace_id) & (table.c.span_id == span_id) & (table.c.rollout_id == "")
            transaction.connection.execute(update(table).where(unplaced).values(**values))
        release(transaction, "span", identities)
        adopt(transaction, {bytes.fromhex(identity.partition("/")[0]) for identity in identities})


def span_identity(trace_id: bytes, span_id: bytes) -> str:
    """How a span is named in the quarantine."""
    return f"{trace_id.hex()}/{span_id.hex()}"


def owners(connection: Connection, trace_ids: Sequence[bytes]) -> dict[bytes, set[tuple[str, str]]]:
    """The (rollout_id, attempt_id) pairs that placed spans of each trace name."""
    table = schema.spans
    found: dict[bytes, set[tuple[str, str]]] = {}
    for start in range(0, len(trace_ids), 500):
        query = select(table.c.trace_id, table.c.rollout_id, table.c.attempt_id).distinct()
        query = query.where(table.c.trace_id.in_(trace_ids[start : start + 500]), table.c.rollout_id != "")
        for row in connection.execute(query):
            found.setdefault(bytes(row.trace_id), set()).add((row.rollout_id, row.attempt_id))
    return found


def of_attempt(connection: Connection, attempt_id: str, last: int) -> tuple[types.Span, ...]:
    """The spans of one attempt that were stored up to row ``last``, in the order they came."""
    rows = connection.execute(_OF_ATTEMPT, {"attempt": attempt_id, "last": last}).mappings()
    return tuple(span_of(row) for row in rows)
