"""Calls keep what the agent was handed, and whether it got it."""

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Add the columns; of calls recorded before nothing is told."""
    op.add_column("calls", sa.Column("tool_calls", sa.Text()))
    op.add_column("calls", sa.Column("request_key", sa.String(), nullable=False, server_default=""))
    op.add_column("calls", sa.Column("delivered_ns", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("calls", sa.Column("superseded_by", sa.String(), nullable=False, server_default=""))
