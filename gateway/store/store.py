"""The one place that reads and writes: opened once a process, with a table of questions and changes for each thing.

Nothing here is on a request's path.
"""

import asyncio
import hmac
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.core.keys import fingerprint
from gateway.store import schema
from gateway.store.admins import AdminTable
from gateway.store.audit import AuditTable
from gateway.store.credentials import REVISION, read_all, read_changes
from gateway.store.database import Database
from gateway.store.engine import new_engine
from gateway.store.keys import KeyTable
from gateway.store.migrate import migrate
from gateway.store.pages import Pages
from gateway.store.passwords import Passwords
from gateway.store.pepper import read_pepper
from gateway.store.quotas import QuotaTable
from gateway.store.repeats import RepeatTable
from gateway.store.rows import Changes, Moment, Snapshot
from gateway.store.sessions import SessionTable
from gateway.store.tenants import TenantTable
from gateway.store.tokens import TokenTable
from gateway.store.usage import UsageTable
from shared.errors import StoreError
from shared.settings import Settings

PEPPER_CHECK = b"evenflow: is this the pepper that this store's keys were made with?"


def wall_clock_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


class Store:
    """Made by `Store.open`; several processes may have it open.

    Every method, of the tables too, raises `StoreError` when the database cannot be used.
    """

    def __init__(self, engine: AsyncEngine, pepper: bytes, now_ms: Callable[[], int], url: str) -> None:
        self._database = Database(engine, pepper, now_ms, url)
        self.pepper = pepper
        self.store_id = ""
        self.tenants = TenantTable(self._database)
        self.keys = KeyTable(self._database)
        self.quotas = QuotaTable(self._database)
        self.usage = UsageTable(self._database)
        self.passwords = Passwords()
        self.admins = AdminTable(self._database, self.passwords)
        self.sessions = SessionTable(self._database)
        self.tokens = TokenTable(self._database)
        self.audit = AuditTable(self._database)
        self.repeats = RepeatTable(self._database)
        self.pages = Pages(self._database)

    @classmethod
    async def open(cls, settings: Settings, *, now_ms: Callable[[], int] = wall_clock_ms) -> "Store":
        """Open the store, making or migrating it as needed. The pepper is made when missing, but not in profile prod.

        Raises:
            SettingsError: If the pepper is missing or cannot be read.
            StoreError: If the database cannot be used, is newer than this Evenflow, or has keys of another pepper.
        """
        path = Path(settings.store.pepper_file)
        pepper = await asyncio.to_thread(read_pepper, path, create=settings.profile != "prod")
        store = cls(new_engine(settings.store.url), pepper, now_ms, settings.store.url)
        try:
            with store._database.translated():
                await migrate(store._database.engine)
            await store._identify(settings.store.pepper_file)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Close every connection. Safe to call twice."""
        self.passwords.close()
        await self._database.engine.dispose()

    def on_change(self, told: Callable[[int], None]) -> None:
        """Call `told` with the revision of each change that this process makes from now on, once it is kept."""
        self._database.on_change = told

    async def revision(self) -> int:
        """How many changes there have been: a number that differs means that something did change."""
        async with self._database.read() as connection:
            return int((await connection.execute(REVISION)).scalar_one())

    async def snapshot(self) -> Snapshot:
        """Everything that requests are judged by, as of one moment."""
        async with self._database.read() as connection:
            return await read_all(connection, self.store_id, self.now_ms)

    async def changes(self, since: Moment) -> Changes | None:
        """What became of it after an earlier read; None if all of it has to be read anew."""
        async with self._database.read() as connection:
            return await read_changes(connection, since, self.now_ms)

    @property
    def now_ms(self) -> int:
        """The store's clock."""
        return self._database.now_ms()

    async def _identify(self, pepper_file: str) -> None:
        """Learn the store's id, and see that the pepper is the one that its keys were made with."""
        mine = fingerprint(self.pepper, PEPPER_CHECK.decode())
        async with self._database.write() as connection:
            row = (await connection.execute(select(schema.identity.c.store_id, schema.identity.c.pepper_check))).one()
            used = (await connection.execute(select(schema.keys.c.id).limit(1))).first() is not None
            if row.pepper_check is None or not hmac.compare_digest(row.pepper_check, mine):
                if row.pepper_check is not None and used:
                    raise StoreError(f"the pepper in {pepper_file} is not the one that the keys here were made with")
                await connection.execute(update(schema.identity).values(pepper_check=mine))
            self.store_id = str(row.store_id)
