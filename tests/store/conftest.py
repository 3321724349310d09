import pytest
from msgspec.structs import replace

from gateway.store.store import Store
from shared.settings import Settings, StoreSettings


class Clock:
    """Milliseconds that pass only when told."""

    def __init__(self):
        self.now = 1_700_000_000_000

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def settings(store_url, tmp_path):
    """Of a new store, on SQLite and on PostgreSQL: whatever uses it, or `store`, runs on both."""
    return replace(Settings(), store=StoreSettings(url=store_url, pepper_file=str(tmp_path / "pepper")))


@pytest.fixture
def empty_settings(empty_url, tmp_path):
    """The same without tables, for tests of making them."""
    return replace(Settings(), store=StoreSettings(url=empty_url, pepper_file=str(tmp_path / "pepper")))


@pytest.fixture
def sqlite_settings(sqlite_url, tmp_path):
    """The same on SQLite alone, for what is about its file."""
    return replace(Settings(), store=StoreSettings(url=sqlite_url, pepper_file=str(tmp_path / "pepper")))


@pytest.fixture
def postgres_settings(postgres_url, tmp_path):
    """The same on PostgreSQL alone, for what is about its server."""
    return replace(Settings(), store=StoreSettings(url=postgres_url, pepper_file=str(tmp_path / "pepper")))


@pytest.fixture
async def store(settings, clock):
    opened = await Store.open(settings, now_ms=clock)
    yield opened
    await opened.close()
