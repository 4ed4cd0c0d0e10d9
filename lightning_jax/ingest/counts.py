"""What the store holds, in numbers, for metrics and for people who wonder where their rollouts are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from lightning_jax.ingest import quarantine, schema


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """One reading of the store."""

    rollouts: Mapping[str, int]  # by state: queued, running, sealed
    sealed: Mapping[str, int]  # by AttemptStatus
    attempts: int
    calls: int
    spans: int
    rewards: int
    quarantined: Mapping[tuple[str, str], int]  # by (kind, reason)


def read(connection: Connection) -> StoreCounts:
    """Count everything in one snapshot."""

    def total(table: str) -> int:
        return int(connection.execute(select(func.count()).select_from(schema.metadata.tables[table])).scalar_one())

    by_state = select(schema.rollouts.c.state, func.count()).group_by(schema.rollouts.c.state)
    by_status = select(schema.sealed.c.status, func.count()).group_by(schema.sealed.c.status)
    return StoreCounts(
        rollouts={row[0]: row[1] for row in connection.execute(by_state)},
        sealed={row[0]: row[1] for row in connection.execute(by_status)},
        attempts=total("attempts"),
        calls=total("calls"),
        spans=total("spans"),
        rewards=total("rewards"),
        quarantined=quarantine.counts(connection),
    )
