"""The first schema. Stores that predate migrations are of this version; new ones never run it."""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Nothing precedes the first schema, so nothing is to be changed."""
