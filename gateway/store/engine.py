"""Connections: SQLite made safe for several processes, PostgreSQL with an end to every wait."""

from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from shared.errors import StoreError

BUSY_TIMEOUT_MS = 10_000
"""Longest wait for another process's transaction: SQLite's lock on the file, PostgreSQL's on a row or a table."""
CONNECT_S = 10.0
STATEMENT_S = 20.0
"""Longest statement, by PostgreSQL's own clock; a transaction that does nothing for so long loses its locks too."""
ANSWER_S = STATEMENT_S + 5
"""Longest wait for PostgreSQL's answer: for a server that does not even refuse."""
TRANSACTION_S = 60.0
"""Longest transaction, whatever it waits for."""
PARAMETERS = {"host", "port", "ssl", "passfile", "target_session_attrs"}
"""What the URL of a PostgreSQL database may say after its `?`, in the driver's words."""
WRITES = "evenflow_writes"
"""Execution option of a connection that will write."""


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; `None` for another database."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database)


def new_engine(url: str, statement_s: float = STATEMENT_S) -> AsyncEngine:
    """An engine for `url`; opens no connection yet. `statement_s` bounds a statement of PostgreSQL's.

    Raises:
        StoreError: If `url` is none, or the database's driver is not installed.
    """
    try:
        make_url(url)
    except (ArgumentError, ValueError) as error:
        raise StoreError(
            "store.url is not a URL: a %, @, / or : in a password is written as %25, %40, %2F, %3A"
        ) from error
    if sqlite_file(url) is None:
        return _new_postgresql(url, statement_s)
    engine = create_async_engine(url, pool_size=2)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def reading(engine: AsyncEngine) -> dict[str, Any]:
    """Options of a connection whose statements must all see the same moment."""
    if engine.dialect.name == "sqlite":
        return {}
    # A transaction that only reads cannot fail to be serialised at this level.
    return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


def writing(engine: AsyncEngine) -> dict[str, Any]:
    """Options of a connection that will write."""
    if engine.dialect.name == "sqlite":
        return {WRITES: True}
    # Whoever waited for a row goes on with what it holds now; at the stricter levels, a server's default perhaps, it
    # would fail.
    return {"isolation_level": "READ COMMITTED"}


def deadline_s(engine: AsyncEngine) -> float | None:
    """Longest transaction in seconds; `None` where each of its statements has an end by itself, on disk."""
    return None if engine.dialect.name == "sqlite" else TRANSACTION_S


def _new_postgresql(url: str, statement_s: float) -> AsyncEngine:
    if strange := sorted(set(make_url(url).query) - PARAMETERS):
        known = ", ".join(sorted(PARAMETERS))
        raise StoreError(
            f"store.url has the parameter {strange[0]}; it may have {known} (ssl=verify-full, not sslmode)"
        )
    waits = {
        "application_name": "evenflow",
        "lock_timeout": str(BUSY_TIMEOUT_MS),
        "statement_timeout": f"{statement_s * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{statement_s * 1000:.0f}",
    }
    connect = {"timeout": CONNECT_S, "command_timeout": statement_s + ANSWER_S - STATEMENT_S, "server_settings": waits}
    try:
        # The ping notices a connection that the server or a firewall has dropped since it was last used.
        return create_async_engine(url, pool_size=2, pool_timeout=CONNECT_S, pool_pre_ping=True, connect_args=connect)
    except ModuleNotFoundError as error:
        raise StoreError(f"store.url needs the package {error.name}: install evenflow[postgres]") from error


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
