import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.core.accounts import Limits
from gateway.core.keys import display, fingerprint, well_formed
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.errors import ConflictError, InvalidRecordError, SettingsError, StoreError, UnknownRecordError
from tests.store.raw import run

BY = Actor("local", name="test")

DAY_MS = 86_400_000


def database(settings):
    return Path(settings.store.url.removeprefix("sqlite+aiosqlite:///"))


async def test_a_tenant_and_its_key(store, clock):
    tenant = await store.tenants.create("acme", limits=Limits(streams=7), by=BY)
    assert (tenant.name, tenant.created_at, tenant.disabled_at, tenant.zone) == ("acme", clock.now, None, "UTC")
    assert await store.tenants.all() == (tenant,)
    key, secret = await store.keys.create("acme", "laptop", expires_at=clock.now + DAY_MS, by=BY)
    assert well_formed(secret)
    assert (key.tenant_id, key.tenant_name, key.name, key.display) == (tenant.id, "acme", "laptop", display(secret))
    assert (key.created_at, key.expires_at, key.revoked_at) == (clock.now, clock.now + DAY_MS, None)
    assert await store.keys.all() == (key,)
    snapshot = await store.snapshot()
    (credential,) = snapshot.credentials
    assert credential.hash == fingerprint(store.pepper, secret)
    assert (credential.key_id, credential.tenant_id, credential.zone) == (key.id, tenant.id, "UTC")
    assert [(q.tenant_id, q.limits) for q in snapshot.quotas] == [(tenant.id, Limits(streams=7))]


async def test_the_key_itself_is_nowhere_on_disk(sqlite_settings):
    settings, store = sqlite_settings, await Store.open(sqlite_settings)
    await store.tenants.create("acme", by=BY)
    _, secret = await store.keys.create("acme", "k", by=BY)
    await store.close()
    files = list(database(settings).parent.parent.rglob("*"))
    assert any(file.suffix == ".db" for file in files)
    assert not any(secret[9:].encode() in file.read_bytes() for file in files if file.is_file())


async def test_two_keys_differ(store):
    await store.tenants.create("acme", by=BY)
    secrets = {(await store.keys.create("acme", f"k{i}", by=BY))[1] for i in range(5)}
    assert len(secrets) == 5


async def test_names_are_taken_once(store):
    await store.tenants.create("acme", by=BY)
    await store.tenants.create("other", by=BY)
    before = await store.revision()
    with pytest.raises(ConflictError, match="tenant named acme"):
        await store.tenants.create("acme", by=BY)
    await store.keys.create("acme", "k", by=BY)
    await store.keys.create("other", "k", by=BY)
    with pytest.raises(ConflictError, match="revoke it first"):
        await store.keys.create("acme", "k", by=BY)
    assert await store.revision() == before + 2
    await store.keys.revoke("k", tenant="acme", by=BY)
    await store.keys.create("acme", "k", by=BY)
    assert len(await store.keys.all("acme")) == 2


@pytest.mark.parametrize("name", ["", "A", "-a", "a b", "a" * 64, "ä", "a\n"])
async def test_names_are_checked(store, name):
    await store.tenants.create("acme", by=BY)
    with pytest.raises(InvalidRecordError, match="tenant name"):
        await store.tenants.create(name, by=BY)
    with pytest.raises(InvalidRecordError, match="key name"):
        await store.keys.create("acme", name, by=BY)


async def test_values_are_checked(store, clock):
    with pytest.raises(InvalidRecordError, match="from 0"):
        await store.tenants.create("acme", limits=Limits(streams=-1), by=BY)
    await store.tenants.create("acme", by=BY)
    with pytest.raises(InvalidRecordError, match="expire"):
        await store.keys.create("acme", "k", expires_at=clock.now, by=BY)


async def test_what_does_not_exist_is_named(store):
    with pytest.raises(UnknownRecordError, match="no tenant 'acme'"):
        await store.keys.create("acme", "k", by=BY)
    with pytest.raises(UnknownRecordError, match="no tenant 'acme'"):
        await store.keys.all("acme")
    with pytest.raises(UnknownRecordError, match="no key 'k'"):
        await store.keys.revoke("k", by=BY)
    await store.tenants.create("acme", by=BY)
    with pytest.raises(UnknownRecordError, match="no key 'k' of tenant acme"):
        await store.keys.revoke("k", tenant="acme", by=BY)
    assert await store.revision() == 1


async def test_revoking(store, clock):
    await store.tenants.create("acme", by=BY)
    key, _ = await store.keys.create("acme", "k", by=BY)
    clock.now += 5
    revoked = await store.keys.revoke(key.id, by=BY)
    assert revoked == replace(key, revoked_at=clock.now, version=2)
    clock.now += 5
    revision = await store.revision()
    assert await store.keys.revoke(key.id, by=BY) == revoked
    assert await store.revision() == revision
    assert await store.keys.all() == (revoked,)
    assert (await store.snapshot()).credentials == ()


async def test_a_key_of_another_tenant_is_not_revoked_by_its_name(store):
    await store.tenants.create("acme", by=BY)
    await store.tenants.create("other", by=BY)
    key, _ = await store.keys.create("other", "k", by=BY)
    for name in ("k", key.id):
        with pytest.raises(UnknownRecordError):
            await store.keys.revoke(name, tenant="acme", by=BY)


async def test_a_name_that_only_one_tenant_has_needs_no_tenant(store):
    for tenant in ("acme", "other"):
        await store.tenants.create(tenant, by=BY)
        await store.keys.create(tenant, "k", by=BY)
    with pytest.raises(UnknownRecordError, match=r"several tenants have a key 'k' \(acme, other\): --tenant NAME"):
        await store.keys.revoke("k", by=BY)
    assert {row.revoked_at for row in await store.keys.all()} == {None}
    await store.keys.revoke("k", tenant="acme", by=BY)
    revoked = await store.keys.revoke("k", by=BY)  # one in force is left
    assert (revoked.tenant_name, revoked.revoked_at is None) == ("other", False)


async def test_a_disabled_tenant_has_no_credentials(store, clock):
    tenant = await store.tenants.create("acme", by=BY)
    await store.keys.create("acme", "k", by=BY)
    disabled = await store.tenants.set_disabled("acme", disabled=True, by=BY)
    assert disabled.disabled_at == clock.now
    clock.now += 1
    assert (await store.tenants.set_disabled(tenant.id, disabled=True, by=BY)).disabled_at == disabled.disabled_at
    assert (await store.snapshot()).credentials == ()
    assert (await store.tenants.set_disabled("acme", disabled=False, by=BY)).disabled_at is None
    assert len((await store.snapshot()).credentials) == 1


async def test_every_change_bumps_the_revision(store):
    seen = [await store.revision()]

    async def note():
        seen.append(await store.revision())

    await store.tenants.create("acme", by=BY)
    await note()
    await store.keys.create("acme", "k", by=BY)
    await note()
    await store.keys.revoke("k", tenant="acme", by=BY)
    await note()
    await store.tenants.set_disabled("acme", disabled=True, by=BY)
    await note()
    assert seen == [0, 1, 2, 3, 4]
    assert (await store.snapshot()).revision == 4


async def test_a_change_that_fails_bumps_nothing_and_leaves_nothing(store, settings):
    await store.tenants.create("acme", by=BY)
    if settings.store.url.startswith("sqlite"):
        refuse = ["CREATE TRIGGER no BEFORE INSERT ON keys BEGIN SELECT RAISE(FAIL, 'not today'); END"]
    else:
        refuse = [
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$",
            "CREATE TRIGGER no BEFORE INSERT ON keys FOR EACH ROW EXECUTE FUNCTION no()",
        ]
    await run(settings, *refuse)
    with pytest.raises(StoreError):
        await store.keys.create("acme", "k", by=BY)
    assert await store.revision() == 1
    assert await store.keys.all() == ()


async def test_a_snapshot_sees_one_moment(store, settings):
    """A change between the two reads of a snapshot is in neither: the revision is that of the keys."""
    await store.tenants.create("acme", by=BY)
    await store.keys.create("acme", "k", by=BY)
    async with store._database.read() as connection:
        number = (await connection.exec_driver_sql("SELECT number FROM revision")).scalar_one()
        other = await Store.open(settings)
        await other.keys.revoke("k", tenant="acme", by=BY)
        await other.close()
        live = (await connection.exec_driver_sql("SELECT count(*) FROM keys WHERE revoked_at IS NULL")).scalar_one()
    assert (number, live) == (2, 1)
    assert (await store.snapshot()).revision == 3


async def test_writers_wait_for_each_other(store, settings):
    other = await Store.open(settings)
    await store.tenants.create("acme", by=BY)
    await asyncio.gather(
        *(s.keys.create("acme", f"{n}-{i}", by=BY) for i in range(10) for n, s in enumerate((store, other)))
    )
    await other.close()
    assert await store.revision() == 21
    assert len(await store.keys.all()) == 20


async def test_a_transaction_that_will_write_holds_the_lock_from_its_start(sqlite_settings):
    """Taken later, after a read, the lock could not be waited for."""
    store = await Store.open(sqlite_settings)
    with sqlite3.connect(database(sqlite_settings), timeout=0) as other:
        async with store._database.write() as connection:
            await connection.exec_driver_sql("SELECT number FROM revision")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")
    other.close()
    await store.close()


async def test_reopening_keeps_everything(store, settings):
    await store.tenants.create("acme", by=BY)
    key, _ = await store.keys.create("acme", "k", by=BY)
    await store.close()
    again = await Store.open(settings)
    assert (again.store_id, again.pepper) == (store.store_id, store.pepper)
    assert await again.keys.all() == (key,)
    await again.close()


async def test_a_wrong_pepper_is_noticed_once_there_are_keys(store, settings):
    pepper = Path(settings.store.pepper_file)
    await store.close()
    pepper.write_bytes(b"x" * 32)
    second = await Store.open(settings)
    await second.tenants.create("acme", by=BY)
    await second.keys.create("acme", "k", by=BY)
    await second.close()
    pepper.write_bytes(b"y" * 32)
    with pytest.raises(StoreError, match="not the one that the keys here were made with"):
        await Store.open(settings)
    pepper.write_bytes(b"x" * 32)
    await (await Store.open(settings)).close()


async def test_prod_makes_no_pepper(sqlite_settings):
    prod = replace(sqlite_settings, profile="prod")
    with pytest.raises(SettingsError, match=r"store\.pepper_file: .*must exist"):
        await Store.open(prod)
    assert not database(sqlite_settings).exists()


async def test_only_its_owner_reads_the_store(sqlite_settings):
    settings, before = sqlite_settings, os.umask(0)
    try:
        store = await Store.open(settings)
        await store.tenants.create("acme", by=BY)
        modes = {
            file.suffix: stat.S_IMODE(file.stat().st_mode)
            for file in database(settings).parent.glob(f"{database(settings).name}*")
        }
        await store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys((".db", ".db-wal", ".db-shm", ".lock"), 0o600)


async def test_a_store_that_cannot_be_opened_says_where(sqlite_settings, tmp_path):
    settings = sqlite_settings
    (tmp_path / "store.db").mkdir()
    blocked = replace(settings, store=replace(settings.store, url=f"sqlite+aiosqlite:///{tmp_path}/store.db"))
    with pytest.raises(StoreError, match=r"store\.db: unable to open"):
        await Store.open(blocked)


async def test_garbage_in_place_of_the_database(sqlite_settings):
    settings = sqlite_settings
    database(settings).parent.mkdir()
    database(settings).write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        await Store.open(settings)


async def test_an_error_shows_no_password(sqlite_settings):
    settings = sqlite_settings
    away = replace(settings, store=replace(settings.store, url="postgresql+asyncpg://me:hunter2@127.0.0.1:1/x"))
    with pytest.raises(StoreError) as caught:
        await Store.open(away)
    assert "hunter2" not in str(caught.value)
