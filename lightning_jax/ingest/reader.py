"""A look into a store from outside: reads only, so that a server may go on writing to it.

Opening a `Store` takes the writer's part (it renews leases); a person who looks must not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from sqlalchemy import Connection, inspect, select
from sqlalchemy.engine import make_url

from lightning_jax import types
from lightning_jax.ingest import calls, quarantine, rewards, schema, sealed, spans
from lightning_jax.ingest.database import open_engine
from lightning_jax.ingest.records import rollout_of
from lightning_jax.ingest.schema import SCHEMA_VERSION

_ALL = 2**62


class StoreReader:
    """The store at ``url``. Raises ValueError where there is none, or one of another schema version."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
            raise ValueError(f"there is no store at {url!r}; give a run's folder or the store's SQLAlchemy URL")
        self._engine = open_engine(url, writer=False)
        with self._engine.connect() as connection:
            found = _version(connection)
        if found != SCHEMA_VERSION:
            self._engine.dispose()
            raise ValueError(
                f"the store at {url!r} has schema version {found}, this program reads {SCHEMA_VERSION}; "
                f"open it once with a server of this version, or read it with the program that wrote it"
            )

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def sealed(self, batch: int = 64) -> Iterator[types.SealedAttempt]:
        """Every sealed attempt, in the order of sealing."""
        cursor = 0
        while True:
            with self._engine.connect() as connection:
                found = sealed.after(connection, cursor, batch)
            if not found:
                return
            yield from found
            cursor = found[-1].cursor

    def rollout(self, rollout_id: str) -> types.SealedAttempt | None:
        """A rollout as it was sealed; one not sealed yet as it stands (status "lost", cursor 0); None: unknown."""
        with self._engine.connect() as connection:
            cursor = connection.execute(
                select(schema.sealed.c.cursor).where(schema.sealed.c.rollout_id == rollout_id)
            ).scalar_one_or_none()
            if cursor is not None:
                return sealed.after(connection, cursor - 1, 1)[0]
            return _open_attempt(connection, rollout_id)

    def late_spans(self, attempt_id: str, sealed_spans: int) -> tuple[types.Span, ...]:
        """Spans of an attempt that came after its seal: they name things for people, and change nothing."""
        with self._engine.connect() as connection:
            return spans.of_attempt(connection, attempt_id, _ALL)[sealed_spans:]

    def quarantine(self) -> list[quarantine.Quarantine]:
        """Everything put aside on its way in, in that order."""
        table = schema.quarantine
        columns = (table.c.kind, table.c.identity, table.c.reason, table.c.detail, table.c.attempt)
        with self._engine.connect() as connection:
            rows = connection.execute(select(*columns).order_by(table.c.id)).all()
        return [quarantine.Quarantine(*row) for row in rows]


def _version(connection: Connection) -> int:
    if not inspect(connection).has_table("meta"):
        return 0
    query = select(schema.meta.c.value).where(schema.meta.c.key == "schema_version")
    return int(connection.execute(query).scalar_one_or_none() or 0)


def _open_attempt(connection: Connection, rollout_id: str) -> types.SealedAttempt | None:
    rollouts, attempts = schema.rollouts, schema.attempts
    row = connection.execute(select(rollouts).where(rollouts.c.rollout_id == rollout_id)).mappings().one_or_none()
    if row is None:
        return None
    query = select(attempts.c.attempt_id, attempts.c.output).where(attempts.c.rollout_id == rollout_id)
    last = connection.execute(query.order_by(attempts.c.number.desc()).limit(1)).one_or_none()
    attempt_id = last.attempt_id if last is not None else ""
    output = json.loads(last.output) if last is not None and last.output else {}
    return types.SealedAttempt(
        cursor=0,
        rollout=rollout_of(row),
        attempt_id=attempt_id,
        outcome=types.Outcome("lost", output, f"not sealed yet: {row['state']}"),
        calls=calls.of_attempt(connection, attempt_id),
        spans=spans.of_attempt(connection, attempt_id, _ALL),
        rewards=rewards.of_attempt(connection, attempt_id, _ALL),
    )
