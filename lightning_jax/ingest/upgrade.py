"""Bring a store to the schema that this program writes, or refuse it with both versions.

meta.schema_version is the truth; Alembic's own table follows it. A change of schema.py needs SCHEMA_VERSION to grow and
a script in migrations/versions whose revision is that number; a test compares what an upgrade gives with schema.py.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, insert, select, update

from lightning_jax.ingest.database import lock
from lightning_jax.ingest.schema import SCHEMA_VERSION, meta, metadata

_KEY = "schema_version"


def prepare(connection: Connection) -> None:
    """Create a new store's tables or migrate an older one's, all in the open transaction.

    Raises ValueError, naming both versions, for a store that a newer program wrote.
    """
    lock(connection, "schema")  # two servers that start at the same time on one PostgreSQL
    metadata.create_all(connection, tables=[meta])
    text = connection.execute(select(meta.c.value).where(meta.c.key == _KEY)).scalar_one_or_none()
    if text is None:
        metadata.create_all(connection)
        connection.execute(insert(meta).values(key=_KEY, value=str(SCHEMA_VERSION)))
        return
    found = int(text)
    if found > SCHEMA_VERSION:
        raise ValueError(
            f"the store has schema version {found}, newer than the version {SCHEMA_VERSION} this program writes; "
            f"use the program that wrote it, or give the run a store of its own"
        )
    if found < SCHEMA_VERSION:
        migrate(connection, found)


def migrate(connection: Connection, found: int) -> None:
    """Run the scripts beyond version ``found``."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.stamp(config, str(found))
    command.upgrade(config, str(SCHEMA_VERSION))
    connection.execute(update(meta).where(meta.c.key == _KEY).values(value=str(SCHEMA_VERSION)))
