"""Bringing the tables to the shape that this version needs, by one process at a time."""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.store.engine import new_engine, sqlite_file, writing
from shared.errors import StoreError

HEAD = "0004"
"""The newest step. Kept here too, so that a store which has it needs no Alembic, slow to import."""
LOCK_WAIT_S = 60.0
LOCK_POLL_S = 0.02
STEP_S = 3600.0
"""Longest statement of a step on PostgreSQL: one that rewrites a large table may take long."""
ADVISORY_LOCK = 0x6576656E666C6F77
"""`evenflow` in ASCII: the number that PostgreSQL locks on."""
_LOCK_NOT_AVAILABLE = "55P03"


async def migrate(engine: AsyncEngine, target: str = HEAD) -> None:
    """Bring the store to `target`, forwards or, if it is an older step, back. One that is there is only looked at.

    Everything happens in one transaction: a step that fails leaves the store as it was.

    Raises:
        StoreError: If a newer Evenflow made the store, or another process holds the lock for a minute.
    """
    if engine.dialect.name == "postgresql":
        async with engine.connect() as connection:
            if await connection.run_sync(current) == target:
                return
    async with _locked(engine), _patient(engine) as patient, patient.connect() as connection:
        await connection.execution_options(**writing(engine))
        async with connection.begin():
            if engine.dialect.name == "postgresql":
                await _lock(connection)
            await connection.run_sync(_move, target)


def current(connection: Connection) -> str | None:
    """The step that the store is at; `None` if it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def _move(connection: Connection, target: str) -> None:
    here = current(connection)
    if here == target:
        return
    if here is not None and here > HEAD:
        raise StoreError(f"the store is at step {here}, made by a newer Evenflow; this one knows steps up to {HEAD}")
    from alembic import command  # noqa: PLC0415  # see HEAD
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    back = target == "base" or (here is not None and target < here)
    (command.downgrade if back else command.upgrade)(config, target)


@contextlib.asynccontextmanager
async def _patient(engine: AsyncEngine) -> AsyncIterator[AsyncEngine]:
    """An engine whose statements may take as long as a step may."""
    if engine.dialect.name == "sqlite":
        yield engine
        return
    patient = new_engine(engine.url.render_as_string(hide_password=False), STEP_S)
    try:
        yield patient
    finally:
        await patient.dispose()


async def _lock(connection: AsyncConnection) -> None:
    """Wait for the other processes that migrate this PostgreSQL database, and for those that use its tables."""
    await connection.execute(text(f"SET LOCAL lock_timeout = {max(LOCK_WAIT_S * 1000, 1):.0f}"))
    try:
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise StoreError(f"another process has held the lock on the store's tables for {LOCK_WAIT_S:.0f} s") from None


@contextlib.asynccontextmanager
async def _locked(engine: AsyncEngine) -> AsyncIterator[None]:
    """One process at a time on an SQLite file, its creation included; PostgreSQL has a lock of its own."""
    file = sqlite_file(engine.url.render_as_string(hide_password=False))
    if file is None:
        yield
        return
    lock = file.with_name(file.name + ".lock")
    handle = await asyncio.to_thread(_open_lock, lock)
    try:
        await _acquire(handle, lock)
        await asyncio.to_thread(_make_private, file)
        yield
    finally:
        handle.close()


def _open_lock(path: Path) -> IO[bytes]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _private(path)


def _make_private(file: Path) -> None:
    """Make a database that only its owner reads; SQLite gives its companions (-wal, -shm) the mode of the file."""
    if not file.exists():
        _private(file).close()


def _private(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


async def _acquire(handle: IO[bytes], path: Path) -> None:
    # Polled: a blocking flock in a thread could not be cancelled.
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreError(f"another process has held {path} for {LOCK_WAIT_S:.0f} s") from None
            await asyncio.sleep(LOCK_POLL_S)
        else:
            return
