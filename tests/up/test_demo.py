"""The demo tenant's key across runs, with a real store."""

import stat

import pytest

from gateway.store.rows import Actor
from gateway.store.store import Store
from gateway.up.demo import demo_key
from shared.settings import Settings, StoreSettings

BY = Actor("local", name="test")


@pytest.fixture
def settings(tmp_path):
    return Settings(
        store=StoreSettings(url=f"sqlite+aiosqlite:///{tmp_path}/evenflow.db", pepper_file=str(tmp_path / "pepper"))
    )


async def live_keys(settings):
    store = await Store.open(settings)
    try:
        return [row for row in await store.keys.all("demo") if row.revoked_at is None]
    finally:
        await store.close()


async def test_it_is_made_once_private_and_kept(settings, tmp_path):
    first = await demo_key(settings, tmp_path)
    file = tmp_path / "demo.key"
    assert file.read_text() == first + "\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await demo_key(settings, tmp_path) == first
    assert [row.display for row in await live_keys(settings)] == [first[:9]]


async def test_a_lost_store_gives_a_new_key_in_the_same_file(settings, tmp_path):
    first = await demo_key(settings, tmp_path)
    for file in tmp_path.glob("evenflow.db*"):
        file.unlink()
    second = await demo_key(settings, tmp_path)
    assert second != first
    assert (tmp_path / "demo.key").read_text() == second + "\n"
    assert [row.display for row in await live_keys(settings)] == [second[:9]]


async def test_a_lost_file_gives_a_new_key_and_the_lost_one_no_longer_opens(settings, tmp_path):
    first = await demo_key(settings, tmp_path)
    (tmp_path / "demo.key").unlink()
    second = await demo_key(settings, tmp_path)
    assert second != first
    assert [row.display for row in await live_keys(settings)] == [second[:9]]


@pytest.mark.parametrize("text", ["", "garbage\n", "ef-" + "0" * 49 + "\n"])
async def test_a_spoilt_file_is_replaced(settings, tmp_path, text):
    (tmp_path / "demo.key").write_text(text)
    key = await demo_key(settings, tmp_path)
    assert (tmp_path / "demo.key").read_text() == key + "\n"
    assert await demo_key(settings, tmp_path) == key


async def test_a_revoked_key_is_replaced(settings, tmp_path):
    first = await demo_key(settings, tmp_path)
    (row,) = await live_keys(settings)
    store = await Store.open(settings)
    await store.keys.revoke(row.id, by=BY)
    await store.close()
    assert await demo_key(settings, tmp_path) != first
