"""Schema versions: an older store is upgraded to exactly what a new one is, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.store import Store
from tests.ingest.conftest import claim_one, make_call, make_rollout

# The first version's table, as its program made it.
FIRST = {
    "sqlite": "CREATE TABLE quarantine (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, kind VARCHAR NOT NULL, "
    "identity VARCHAR NOT NULL, reason VARCHAR NOT NULL, detail TEXT NOT NULL, received_ns BIGINT NOT NULL, "
    "UNIQUE (kind, identity, reason))",
    "postgresql": "CREATE TABLE quarantine (id BIGSERIAL PRIMARY KEY, kind VARCHAR NOT NULL, identity VARCHAR NOT NULL,"
    " reason VARCHAR NOT NULL, detail TEXT NOT NULL, received_ns BIGINT NOT NULL, UNIQUE (kind, identity, reason))",
}


def make_first(url: str) -> types.Attempt:
    """A store of version 1 with an attempt, a call and a quarantined span in it."""
    with Store(url) as store:
        attempt = claim_one(store)
        store.record_call(make_call(attempt, 0)).result()
    engine = create_engine(url)
    with engine.begin() as connection:
        for column in ("tool_calls", "request_key", "delivered_ns", "superseded_by"):
            connection.exec_driver_sql(f"ALTER TABLE calls DROP COLUMN {column}")
        connection.exec_driver_sql("DROP TABLE quarantine")
        connection.exec_driver_sql("DROP INDEX spans_unplaced")
        narrow(connection)
        connection.exec_driver_sql(FIRST[engine.dialect.name])
        values = "('span', 'aa/bb', 'no_identity', '', 1)"
        connection.exec_driver_sql(
            f"INSERT INTO quarantine (kind, identity, reason, detail, received_ns) VALUES {values}"
        )
        connection.exec_driver_sql("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    engine.dispose()
    return attempt


def narrow(connection: Connection) -> None:
    """Steps of 32 bits, as the first versions had them."""
    if connection.dialect.name == "postgresql":
        for table in ("rollouts", "policies"):
            connection.exec_driver_sql(f"ALTER TABLE {table} ALTER COLUMN step TYPE INTEGER")
        return
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.exec_driver_sql("UPDATE sqlite_master SET sql = replace(sql, 'step BIGINT', 'step INTEGER')")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")


def test_an_older_store_is_upgraded_to_what_a_new_one_is(store_url: str) -> None:
    attempt = make_first(store_url)
    for _ in range(2):  # the second time there is nothing left to do
        with Store(store_url) as store:
            assert len(store.list_calls(attempt.attempt_id)) == 1
            assert store.complete(attempt.attempt_id, types.Outcome("succeeded")).result() in (
                "sealed",
                "already_ended",
            )
            store.enqueue_rollouts([replace(make_rollout("later"), step=2**40)]).result()
            assert store.sealed_after(0)[0].rollout == make_rollout("r")
            assert store.counts().quarantined == {("span", "no_identity"): 1}
    engine = create_engine(store_url)
    with engine.connect() as connection:
        version = connection.execute(text("SELECT value FROM meta WHERE key = 'schema_version'")).scalar_one()
        assert version == str(schema.SCHEMA_VERSION)
        differences = compare_metadata(MigrationContext.configure(connection), schema.metadata)
    engine.dispose()
    assert [item for item in differences if "alembic_version" not in str(item)] == []


def test_a_failed_upgrade_leaves_the_store_as_it_was(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_first(store_url)
    beyond = schema.SCHEMA_VERSION + 1  # no script leads there
    monkeypatch.setattr("lightning_jax.ingest.upgrade.SCHEMA_VERSION", beyond)
    with pytest.raises(Exception, match=str(beyond)):
        Store(store_url)
    monkeypatch.undo()
    with Store(store_url) as store:
        assert store.counts().quarantined == {("span", "no_identity"): 1}


def test_a_newer_store_is_refused_with_both_versions(store_url: str) -> None:
    Store(store_url).close()
    engine = create_engine(store_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    engine.dispose()
    with pytest.raises(ValueError, match=rf"version 99, newer than the version {schema.SCHEMA_VERSION}"):
        Store(store_url)
