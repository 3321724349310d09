"""Who is told of changes, and what changed since."""

from pathlib import Path

import pytest

from gateway.core.accounts import Limits
from gateway.store import credentials
from gateway.store.rows import Actor, Moment
from gateway.store.store import Store
from shared.errors import ConflictError

BY = Actor("local", name="test")


async def test_each_change_of_this_process_is_told_with_its_revision_once_it_is_kept(store):
    told = []
    store.on_change(told.append)
    await store.tenants.create("acme", by=BY)
    key, _ = await store.keys.create("acme", "k", by=BY)
    with pytest.raises(ConflictError):
        await store.tenants.create("acme", by=BY)
    await store.keys.revoke(key.id, by=BY)
    assert told == [1, 2, 3]
    assert await store.revision() == 3


class Reader:
    """Keeps what it read, and goes on from there, as a gateway does."""

    def __init__(self, store):
        self.store = store
        self.whole = 0

    async def all(self):
        snapshot = await self.store.snapshot()
        self.whole += 1
        self.moment, self.quotas = snapshot.moment, snapshot.quotas
        self.keys = {row.hash: row for row in snapshot.credentials}

    async def more(self):
        changes = await self.store.changes(self.moment)
        if changes is None:
            await self.all()
            return
        for digest in changes.touched:
            self.keys.pop(digest, None)
        self.keys |= {row.hash: row for row in changes.credentials}
        self.moment = changes.moment
        self.quotas = self.quotas if changes.quotas is None else changes.quotas


async def test_reading_on_ends_up_with_what_reading_anew_does(store, clock):
    for tenant in ("acme", "other"):
        await store.tenants.create(tenant, by=BY)
        for name in ("a", "b"):
            await store.keys.create(tenant, name, by=BY)
    reader = Reader(store)
    await reader.all()

    async def later():
        clock.now += 1

    changes = [
        lambda: store.keys.create("acme", "c", models=["m"], by=BY),
        lambda: store.keys.create("acme", "d", expires_at=clock.now + 1, by=BY),
        later,
        lambda: store.keys.update("a", tenant="acme", networks=["10.0.0.0/8"], by=BY),
        lambda: store.keys.update("d", expires_at=clock.now + 9, by=BY),  # it had expired
        lambda: store.keys.revoke("b", tenant="acme", by=BY),
        lambda: store.keys.rotate("a", 60, tenant="other", by=BY),
        lambda: store.keys.rotate("b", 0, tenant="other", by=BY),
        lambda: store.tenants.set_disabled("acme", disabled=True, by=BY),
        lambda: store.tenants.set_zone("other", "Asia/Tokyo", by=BY),
        lambda: store.quotas.set("other", Limits(tokens=5), by=BY),
        lambda: store.keys.revoke("d", by=BY),
        lambda: store.tenants.set_disabled("acme", disabled=False, by=BY),
        lambda: store.quotas.clear("other", by=BY),
        lambda: store.tenants.create("third", by=BY),
    ]
    for change in changes:
        await change()
        await reader.more()
        snapshot = await store.snapshot()
        live = {digest: row for digest, row in reader.keys.items() if not row.expires_at or row.expires_at > clock.now}
        assert live == {row.hash: row for row in snapshot.credentials}
        assert (reader.moment, reader.quotas) == (snapshot.moment, snapshot.quotas)
    assert (reader.whole, len(live)) == (1, 5)


async def test_reading_on_reads_only_what_changed(store):
    await store.tenants.create("acme", by=BY)
    for number in range(5):
        await store.keys.create("acme", f"k{number}", by=BY)
    moment = (await store.snapshot()).moment
    await store.keys.revoke("k3", by=BY)
    changes = await store.changes(moment)
    assert (len(changes.touched), changes.credentials, changes.quotas) == (1, (), None)
    again = await store.changes(changes.moment)
    assert (again.touched, again.moment) == ((), changes.moment)


async def test_who_is_far_behind_reads_everything(store, monkeypatch):
    monkeypatch.setattr(credentials, "MOST_ENTRIES", 3)
    await store.tenants.create("acme", by=BY)
    moment = (await store.snapshot()).moment
    for number in range(3):
        await store.keys.create("acme", f"k{number}", by=BY)
    assert len((await store.changes(moment)).credentials) == 3
    await store.keys.create("acme", "k", by=BY)
    assert await store.changes(moment) is None


async def test_before_the_first_entry_of_the_log_everything_is_read(store):
    moment = (await store.snapshot()).moment
    assert moment == Moment(0)
    await store.tenants.create("acme", by=BY)
    assert await store.changes(moment) is None


async def test_a_restored_backup_is_read_from_its_beginning(sqlite_settings, tmp_path):
    """Whether it has fewer changes than were known, or meanwhile more of other ones."""
    store = await Store.open(sqlite_settings)
    file = Path(sqlite_settings.store.url.removeprefix("sqlite+aiosqlite:///"))
    await store.tenants.create("acme", by=BY)
    await store.keys.create("acme", "a", by=BY)
    await store.close()
    backup = file.read_bytes()
    store = await Store.open(sqlite_settings)
    await store.keys.create("acme", "b", by=BY)
    moment = (await store.snapshot()).moment
    await store.close()
    file.write_bytes(backup)
    store = await Store.open(sqlite_settings)
    try:
        assert await store.changes(moment) is None
        for name in ("c", "d"):
            await store.keys.create("acme", name, by=BY)
        assert (await store.snapshot()).moment.revision > moment.revision
        assert await store.changes(moment) is None
    finally:
        await store.close()


async def test_rows_are_read_in_pieces(store, monkeypatch):
    monkeypatch.setattr(credentials, "AT_ONCE", 2)
    await store.tenants.create("acme", by=BY)
    made = {(await store.keys.create("acme", f"k{number}", by=BY))[0].id for number in range(5)}
    snapshot = await store.snapshot()
    assert {row.key_id for row in snapshot.credentials} == made
    assert len({id(row.tenant_id) for row in snapshot.credentials}) == 1
