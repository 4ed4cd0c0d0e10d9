"""Alembic's entry: migrates over the connection it is handed, inside the transaction that is open on it."""

from alembic import context

if hasattr(context, "config"):  # only while Alembic runs this file; it can be imported like any other
    context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
