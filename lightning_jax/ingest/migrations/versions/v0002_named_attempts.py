"""Quarantined spans remember which attempt they named, so that they are placed once it is claimed."""

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Add the column and the index by which a claim looks for its early spans."""
    op.add_column("quarantine", sa.Column("attempt", sa.String(), nullable=False, server_default=""))
    op.create_index("quarantine_by_attempt", "quarantine", ["attempt"], sqlite_where=sa.text("attempt != ''"),
                    postgresql_where=sa.text("attempt != ''"))  # fmt: skip
