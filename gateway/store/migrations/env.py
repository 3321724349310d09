"""Alembic's entry: runs the steps on the connection that `gateway.store.migrate` holds, inside its transaction."""

from alembic import context

from gateway.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
)
context.run_migrations()
