"""The database past the store: what its tables hold, and rows and changes that the store would not make."""

import asyncio
import contextlib

from sqlalchemy import text

from gateway.store.engine import new_engine, writing
from gateway.store.migrate import HEAD, migrate


async def rows(settings, query, **values):
    """The rows of one query, as tuples."""
    async with _transaction(settings) as connection:
        return [tuple(row) for row in await connection.execute(text(query), values)]


async def run(settings, *statements, **values):
    """Statements in one transaction; `values` are for their `:names`."""
    async with _transaction(settings) as connection:
        for statement in statements:
            await connection.execute(text(statement), values)


async def go(settings, target):
    """Bring the tables to a step, forwards or back."""
    await _go(settings.store.url, target)


def make(url):
    """Make the newest tables, and nothing else."""
    asyncio.run(_go(url, HEAD))


async def _go(url, target):
    engine = new_engine(url)
    try:
        await migrate(engine, target)
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def _transaction(settings):
    engine = new_engine(settings.store.url)
    try:
        async with engine.connect() as connection:
            await connection.execution_options(**writing(engine))
            async with connection.begin():
                yield connection
    finally:
        await engine.dispose()
