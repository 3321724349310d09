"""The dashboard over a real store, asked in this process; the house behind it has no bus."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from types import SimpleNamespace

import httpx
import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace

from gateway.app import admin_app
from gateway.core.fleet import Fleet
from gateway.core.freshness import Freshness
from gateway.core.line import Line
from gateway.services.meters import Meters
from gateway.services.pulse import PulseWatch
from gateway.services.quotas import Allowances
from gateway.store import store as stores
from gateway.store.passwords import Passwords
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.settings import Settings, StoreSettings
from shared.telemetry import Metrics
from shared.wire import Ann, Slots, Version

BY = Actor("local", name="test")
PASSWORD = "correct horse battery"
ORIGIN = "http://door"
VERSION = Version(model="smol", version="7", digest="", context=8, max_output=8, vocab_hash="")
READY = Ann(wep="e", n=1, state="ready", versions=(VERSION,), slots=Slots(total=4, free=4), load_progress=1.0)


class Clock:
    """Milliseconds that pass only when told."""

    def __init__(self):
        self.now = 1_790_000_000_000

    def __call__(self):
        return self.now

    @property
    def seconds(self):
        return self.now / 1000


class Request:
    """What a passage shows to the pulse."""

    def __init__(self, received=0, first_token_at=None):
        self.attempts = [SimpleNamespace(received=received)]
        self.first_token_at = first_token_at


class Page:
    """An answer, as somebody reads it."""

    def __init__(self, answer: httpx.Response):
        self.answer, self.status, self.html = answer, answer.status_code, answer.text
        self.text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", self.html)).strip()

    @property
    def csrf(self):
        return re.search(r'name="csrf" value="([^"]+)"', self.html)[1]

    def form(self, action):
        """The fields of the form that goes there, as a browser would send them untouched."""
        found = _Forms()
        found.feed(self.html)
        return next(dict(fields) for to, fields in found.forms if to == action)


class _Forms(HTMLParser):
    def __init__(self):
        super().__init__()
        self.forms: list[tuple[str, list[tuple[str, str]]]] = []

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        if tag == "form":
            self.forms.append((told.get("action", ""), []))
        elif tag == "input" and "name" in told and (told.get("type") != "checkbox" or "checked" in told):
            self.forms[-1][1].append((told["name"], told.get("value") or ""))


class Person:
    """Somebody with a browser that has no scripts."""

    def __init__(self, client):
        self.client = client

    async def see(self, path, status=200):
        page = Page(await self.client.get(path))
        assert page.status == status, (page.status, page.text)
        return page

    async def send(self, path, status, **fields):
        page = Page(await self.client.post(path, data=fields))
        assert page.status == status, (page.status, page.text)
        return page

    async def follow(self, page):
        return await self.see(page.answer.headers["location"])


class Desk:
    """The door, its store and its clock."""

    def __init__(self, app, house, store, clock):
        self.app, self.house, self.store, self.clock = app, house, store, clock

    def client(self, **options):
        transport = httpx.ASGITransport(self.app, client=("10.0.0.1", 1234), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=ORIGIN, **options)

    async def login(self):
        client = self.client()
        answer = await client.post("/login", data={"name": "ada", "password": PASSWORD, "next": "/"})
        assert answer.status_code == 303, answer.text
        return Person(client)

    def second(self):
        """One more second passes, and the pulse is looked at."""
        self.clock.now += 1000
        self.house.pulse.look(self.clock.seconds)

    async def refresh(self):
        """The house takes over what the store has."""
        self.house.quotas.load(await self.store.snapshot())


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cheap(monkeypatch):
    """Hashes that cost next to nothing, where what they cost is not the point."""
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(stores, "Passwords", lambda: Passwords(hasher))


@contextlib.asynccontextmanager
async def door(tmp_path, clock, url) -> AsyncIterator[Desk]:
    base = Settings()
    settings = replace(base, store=StoreSettings(url=url, pepper_file=str(tmp_path / "pepper")))
    store = await Store.open(settings, now_ms=clock)
    metrics, fleet = Metrics("test"), Fleet()
    quotas = Allowances(settings.limits, lambda: clock.seconds, lambda: clock.seconds)
    quotas.restored = True
    house = SimpleNamespace(
        settings=settings,
        fleet=fleet,
        meters=Meters(metrics),
        quotas=quotas,
        freshness=Freshness(),
        streams=SimpleNamespace(connected=True),
        draining=asyncio.Event(),
        concerns=[],
        obstacles=[],
        pulse=PulseWatch(fleet, Line(10, 10), lambda: clock.seconds, lambda: clock.seconds),
    )
    fleet.announced(0.0, "w1", READY)
    try:
        yield Desk(admin_app(house, store), house, store, clock)
    finally:
        await store.close()
        metrics.close()


@pytest.fixture
async def desk(store_url, tmp_path, clock, cheap):
    async with door(tmp_path, clock, store_url) as opened:
        await opened.store.admins.create("ada", PASSWORD, by=BY)
        yield opened


@pytest.fixture
async def ada(desk):
    person = await desk.login()
    yield person
    await person.client.aclose()
