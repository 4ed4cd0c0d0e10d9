"""The stream of sealed attempts: read by position, acknowledged per consumer."""

from __future__ import annotations

import json

from sqlalchemy import Connection, Integer, bindparam, select, update

from lightning_jax import types
from lightning_jax.ingest import calls, rewards, schema, spans
from lightning_jax.ingest.database import insert_new
from lightning_jax.ingest.records import rollout_of
from lightning_jax.ingest.sealing import outcome_of
from lightning_jax.ingest.writer import Transaction

# Built once: composing a statement costs more than running it, and learners ask for each rollout.
_AFTER = (
    select(schema.sealed, *(column for column in schema.rollouts.c if column.name != "rollout_id"))
    .join(schema.rollouts, schema.rollouts.c.rollout_id == schema.sealed.c.rollout_id)
    .where(schema.sealed.c.cursor > bindparam("position"))
    .order_by(schema.sealed.c.cursor)
    .limit(bindparam("most", type_=Integer))
)


def after(connection: Connection, cursor: int, limit: int) -> list[types.SealedAttempt]:
    """Up to ``limit`` sealed attempts with a position beyond ``cursor``, in order."""
    return [
        types.SealedAttempt(
            cursor=row["cursor"],
            rollout=rollout_of(row),
            attempt_id=row["attempt_id"],
            outcome=outcome_of(row, json.loads(row["output"])),
            calls=calls.of_attempt(connection, row["attempt_id"]) if row["attempt_id"] else (),
            spans=spans.of_attempt(connection, row["attempt_id"], row["last_span"]),
            rewards=rewards.of_attempt(connection, row["attempt_id"], row["last_reward"]),
        )
        for row in connection.execute(_AFTER, {"position": cursor, "most": limit}).mappings().all()
    ]


def acknowledge(transaction: Transaction, consumer: str, cursor: int) -> int:
    """Note that ``consumer`` is done with everything up to ``cursor``; never moves back. Returns the position held."""
    table = schema.consumers
    insert_new(transaction.connection, table, [{"name": consumer, "cursor": cursor}])
    transaction.connection.execute(
        update(table).where(table.c.name == consumer, table.c.cursor < cursor).values(cursor=cursor)
    )
    return acknowledged(transaction.connection, consumer)


def acknowledged(connection: Connection, consumer: str) -> int:
    """The position up to which ``consumer`` is done; 0 for a new one."""
    query = select(schema.consumers.c.cursor).where(schema.consumers.c.name == consumer)
    return connection.execute(query).scalar_one_or_none() or 0
