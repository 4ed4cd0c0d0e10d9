"""The ledger of published policy versions: which version number stands for which weights, for good."""

from __future__ import annotations

from sqlalchemy import Connection, select

from lightning_jax import types
from lightning_jax.ingest import schema
from lightning_jax.ingest.errors import IdentityConflict
from lightning_jax.ingest.writer import Transaction

LOCAL = "local"  # the digest of weights that were handed over inside a process and never hashed; it stands for any


def check(connection: Connection, policy: types.PolicyVersion) -> None:
    """Raise IdentityConflict where the version number already stands for other weights."""
    before = find(connection, policy.version)
    if before is not None and before.digest != policy.digest and LOCAL not in (before.digest, policy.digest):
        raise IdentityConflict(
            f"policy version {policy.version} was published with digest {before.digest} and now comes with "
            f"{policy.digest}; publish other weights under a new version"
        )


def record(transaction: Transaction, policy: types.PolicyVersion) -> None:
    """Note a version. Repeating it is harmless. Raises IdentityConflict."""
    check(transaction.connection, policy)
    if find(transaction.connection, policy.version) is None:
        transaction.connection.execute(
            schema.policies.insert().values(
                version=policy.version, digest=policy.digest, step=policy.step, published_ns=transaction.now_ns
            )
        )


def latest(connection: Connection) -> types.PolicyVersion | None:
    """The version published last, by whatever process had this store; None before the first."""
    table = schema.policies
    row = connection.execute(
        select(table.c.version, table.c.digest, table.c.step).order_by(table.c.version.desc()).limit(1)
    ).one_or_none()
    return None if row is None else types.PolicyVersion(row.version, row.digest, row.step)


def find(connection: Connection, version: int) -> types.PolicyVersion | None:
    """The version as published, or None."""
    table = schema.policies
    row = connection.execute(
        select(table.c.version, table.c.digest, table.c.step).where(table.c.version == version)
    ).one_or_none()
    return None if row is None else types.PolicyVersion(row.version, row.digest, row.step)
