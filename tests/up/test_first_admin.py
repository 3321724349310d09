"""The first admin and its password across runs, with a real store."""

import stat

import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace

from gateway.store import store as stores
from gateway.store.passwords import Passwords
from gateway.store.rows import Actor
from gateway.store.store import Store
from gateway.up.first_admin import first_admin
from shared.settings import Settings, StoreSettings

BY = Actor("local", name="test")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(stores, "Passwords", lambda: Passwords(cheap))
    return Settings(
        store=StoreSettings(url=f"sqlite+aiosqlite:///{tmp_path}/evenflow.db", pepper_file=str(tmp_path / "pepper"))
    )


async def changed(settings, change):
    store = await Store.open(settings)
    try:
        return await change(store)
    finally:
        await store.close()


async def test_it_is_made_once_private_and_kept(settings, tmp_path):
    assert await first_admin(settings, tmp_path)
    file = tmp_path / "admin.password"
    password = file.read_text()
    assert len(password.strip()) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await first_admin(settings, tmp_path)
    assert file.read_text() == password
    admins = await changed(settings, lambda store: store.admins.all())
    assert [(admin.name, admin.version) for admin in admins] == [("admin", 1)]


async def test_a_password_that_was_changed_stays(settings, tmp_path):
    await first_admin(settings, tmp_path)
    await changed(settings, lambda store: store.admins.set_password("admin", "chosen by a person", by=BY))
    assert not await first_admin(settings, tmp_path)
    assert await changed(settings, lambda store: store.admins.verify("admin", "chosen by a person"))


async def test_where_there_are_admins_none_is_made(settings, tmp_path):
    await changed(settings, lambda store: store.admins.create("ada", "chosen by a person", by=BY))
    assert not await first_admin(settings, tmp_path)
    assert not (tmp_path / "admin.password").exists()


async def test_a_lost_store_gets_the_same_password_again(settings, tmp_path):
    await first_admin(settings, tmp_path)
    password = (tmp_path / "admin.password").read_text()
    for file in tmp_path.glob("evenflow.db*"):
        file.unlink()
    assert await first_admin(settings, tmp_path)
    assert (tmp_path / "admin.password").read_text() == password


@pytest.mark.parametrize("text", ["", "short\n"])
async def test_a_spoilt_file_is_replaced(settings, tmp_path, text):
    (tmp_path / "admin.password").write_text(text)
    assert await first_admin(settings, tmp_path)
    assert len((tmp_path / "admin.password").read_text().strip()) == 32


async def test_in_production_nobody_is_made(settings, tmp_path):
    (tmp_path / "pepper").write_bytes(b"p" * 32)
    assert not await first_admin(replace(settings, profile="prod"), tmp_path)
    assert await changed(settings, lambda store: store.admins.all()) == ()
