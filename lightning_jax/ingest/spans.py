"""Spans: stored whole and once, by (trace_id, span_id). They enrich calls; they are never the truth about tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select, update

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


def record(
    transaction: Transaction,
    spans: Sequence[types.Span],
    aside: Sequence[Quarantine],
    adoptions: Mapping[bytes, tuple[str, str]],
) -> int:
    """Insert the spans that are new and note why some could not be placed. Returns how many were new.

    adoptions: traces whose unplaced spans now belong to a (rollout_id, attempt_id).
    """
    added = insert_new(transaction.connection, schema.spans, [span_row(span) for span in spans])
    put_aside(transaction, aside)
    for trace_id, identity in adoptions.items():
        adopt(transaction, trace_id, *identity)
    return added


def adopt(transaction: Transaction, trace_id: bytes, rollout_id: str, attempt_id: str) -> int:
    """Give the unplaced spans of a trace to an attempt, once another span of the trace says whose trace it is."""
    table = schema.spans
    unplaced = (table.c.trace_id == trace_id) & (table.c.rollout_id == "")
    found = transaction.connection.execute(select(table.c.span_id).where(unplaced)).scalars().all()
    if found:
        values = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        transaction.connection.execute(update(table).where(unplaced).values(**values))
        release(transaction, "span", [span_identity(trace_id, bytes(span_id)) for span_id in found])
    return len(found)


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
