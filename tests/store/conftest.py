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
def settings(tmp_path):
    files = StoreSettings(url=f"sqlite+aiosqlite:///{tmp_path}/new/store.db", pepper_file=str(tmp_path / "pepper"))
    return replace(Settings(), store=files)


@pytest.fixture
async def store(settings, clock):
    opened = await Store.open(settings, now_ms=clock)
    yield opened
    await opened.close()
