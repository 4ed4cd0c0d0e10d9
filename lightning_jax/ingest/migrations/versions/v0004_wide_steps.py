"""Steps get the 64 bits that they have on the wire, and unplaced spans an index of their own."""

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Widen the columns and add the index."""
    options = {"rollouts": {"sqlite_autoincrement": True}, "policies": {}}
    for table, kept in options.items():
        with op.batch_alter_table(table, table_kwargs=kept) as batch:
            batch.alter_column("step", existing_type=sa.Integer(), type_=sa.BigInteger(), existing_nullable=False)
    op.create_index("spans_unplaced", "spans", ["trace_id"], sqlite_where=sa.text("rollout_id = ''"),
                    postgresql_where=sa.text("rollout_id = ''"))  # fmt: skip
