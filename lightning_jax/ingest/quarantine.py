"""What came in and could not be used: kept with a reason and counted, never dropped in silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select

from lightning_jax.ingest import schema
from lightning_jax.ingest.database import insert_new
from lightning_jax.ingest.records import column_text
from lightning_jax.ingest.writer import Transaction


@dataclass(frozen=True, slots=True)
class Quarantine:
    """One piece of input put aside."""

    kind: str  # span | call | reward
    identity: str
    reason: str  # a short fixed word, to be counted by
    detail: str = ""
    attempt: str = ""  # which attempt a span named that was not known when it came


def put_aside(transaction: Transaction, items: Sequence[Quarantine]) -> int:
    """Store the items; one that came before with the same reason is not counted again. Returns how many were new."""
    rows = [
        {
            "kind": item.kind,
            "identity": column_text(item.identity),
            "reason": item.reason,
            "detail": column_text(item.detail[:2000]),
            "received_ns": transaction.now_ns,
            "attempt": column_text(item.attempt),
        }
        for item in items
    ]
    return insert_new(transaction.connection, schema.quarantine, rows)


def release(transaction: Transaction, kind: str, identities: Sequence[str]) -> None:
    """Forget items that found their place after all."""
    table = schema.quarantine
    for start in range(0, len(identities), 500):
        some = table.c.identity.in_(identities[start : start + 500])
        transaction.connection.execute(delete(table).where(table.c.kind == kind, some))


def early_spans(connection: Connection, attempt_ids: Sequence[str]) -> dict[str, list[str]]:
    """Identities of the spans that named an attempt before it was claimed, by attempt."""
    table = schema.quarantine
    query = select(table.c.attempt, table.c.identity).where(
        table.c.attempt.in_(attempt_ids), table.c.attempt != "", table.c.kind == "span"
    )
    found: dict[str, list[str]] = {}
    for attempt, identity in connection.execute(query):
        found.setdefault(attempt, []).append(identity)
    return found


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """How many items were put aside, by (kind, reason)."""
    table = schema.quarantine
    query = select(table.c.kind, table.c.reason, func.count()).group_by(table.c.kind, table.c.reason)
    return {(kind, reason): number for kind, reason, number in connection.execute(query)}
