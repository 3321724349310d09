"""The operators' door over a real store, asked in this process; the house behind it has no bus."""

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace
from sqlalchemy import text

from gateway.app import admin_app
from gateway.core.fleet import Fleet
from gateway.services.meters import Meters
from gateway.store import store as stores
from gateway.store.passwords import Passwords
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.settings import Settings, StoreSettings
from shared.telemetry import Metrics

BY = Actor("local", name="test")
PASSWORD = "correct horse battery"
ORIGIN = "http://door"


class Clock:
    """Milliseconds that pass only when told."""

    def __init__(self):
        self.now = 1_700_000_000_000

    def __call__(self):
        return self.now


class Desk:
    """The door, its store and its clock."""

    def __init__(self, app, house, store, clock):
        self.app, self.house, self.store, self.clock = app, house, store, clock

    def client(self, source="10.0.0.1", **options):
        transport = httpx.ASGITransport(self.app, client=(source, 1234), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=ORIGIN, **options)

    async def token(self, *scopes, name=None):
        """A client that has a token."""
        _, secret = await self.store.tokens.create(name or "-".join(scopes), scopes, by=BY)
        return self.client(headers={"authorization": f"Bearer {secret}"})

    async def login(self, name="ada", password=PASSWORD, **options):
        """A client that is logged in and sends its token with every request."""
        async with self.client(**options) as client:
            answer = await client.post("/admin/v1/session", json={"name": name, "password": password})
            assert answer.status_code == 201, answer.text
        csrf = {"x-csrf-token": answer.json()["csrf"]}
        return self.client(**options, cookies=answer.cookies, headers=csrf)

    async def entries(self):
        """The audit log, oldest first."""
        return await self.rows("SELECT * FROM audit ORDER BY sequence")

    async def rows(self, query):
        """What the tables hold, past the store."""
        async with self.store._database.read() as connection:
            return list(await connection.execute(text(query)))

    async def run(self, *statements, **values):
        """Changes that the store would not make; `values` are for their `:names`."""
        async with self.store._database.write() as connection:
            for statement in statements:
                await connection.execute(text(statement), values)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cheap(monkeypatch):
    """Hashes that cost next to nothing, where what they cost is not the point."""
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(stores, "Passwords", lambda: Passwords(hasher))


@contextlib.asynccontextmanager
async def door(tmp_path, clock, url="", **admin) -> AsyncIterator[Desk]:
    base = Settings()
    url = url or f"sqlite+aiosqlite:///{tmp_path}/store.db"
    settings = replace(
        base,
        admin=replace(base.admin, **admin),
        store=StoreSettings(url=url, pepper_file=str(tmp_path / "pepper")),
    )
    store = await Store.open(settings, now_ms=clock)
    metrics = Metrics("test")
    house = SimpleNamespace(
        settings=settings,
        fleet=Fleet(),
        meters=Meters(metrics),
    )
    try:
        yield Desk(admin_app(house, store), house, store, clock)
    finally:
        await store.close()
        metrics.close()


@pytest.fixture
def desk_url(tmp_path):
    """`store.url` of `desk`; a module that makes it `store_url` runs on SQLite and on PostgreSQL."""
    return f"sqlite+aiosqlite:///{tmp_path}/store.db"


@pytest.fixture
async def both(store_url, tmp_path, clock, cheap):
    """A door for a single test that runs on SQLite and on PostgreSQL."""
    async with door(tmp_path, clock, store_url) as opened:
        yield opened


@pytest.fixture
async def desk(desk_url, tmp_path, clock, cheap):
    async with door(tmp_path, clock, desk_url) as opened:
        await opened.store.admins.create("ada", PASSWORD, by=BY)
        yield opened
