"""Connections: SQLite made safe for several processes, PostgreSQL as it comes."""

from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from shared.errors import StoreError

BUSY_TIMEOUT_MS = 10_000
WRITES = "evenflow_writes"
"""Execution option of a connection that will write."""


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; `None` for another database."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database)


def new_engine(url: str) -> AsyncEngine:
    """An engine for `url`; opens no connection yet.

    Raises:
        StoreError: If the database's driver is not installed.
    """
    try:
        # The ping notices a connection that a database server or a firewall has dropped since it was last used.
        engine = create_async_engine(url, pool_size=2, pool_pre_ping=sqlite_file(url) is None)
    except ModuleNotFoundError as error:
        raise StoreError(f"store.url needs the package {error.name}: install evenflow[postgres]") from error
    if sqlite_file(url) is None:
        return engine
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def reading(engine: AsyncEngine) -> dict[str, Any]:
    """Options of a connection whose statements must all see the same moment."""
    return {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}


def writing(engine: AsyncEngine) -> dict[str, Any]:
    """Options of a connection that will write."""
    return {WRITES: True} if engine.dialect.name == "sqlite" else {}


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # Python's driver would begin transactions late, and none at all for reads: it leaves that to us.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    # Stays with the file: changes something only on the first connection ever, which `migrate` makes under its lock.
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads and then writes fails at once if another one wrote in between, busy timeout or not:
    # writers take the lock at the start, where they can wait for it.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
