"""Who is told of changes, and what changed since."""

import pytest

from gateway.store.rows import Actor
from shared.errors import ConflictError

BY = Actor("local", name="test")


async def test_each_change_of_this_process_is_told_with_its_revision_once_it_is_kept(store):
    told = []
    store._database.on_change = told.append
    await store.tenants.create("acme", by=BY)
    key, _ = await store.keys.create("acme", "k", by=BY)
    with pytest.raises(ConflictError):
        await store.tenants.create("acme", by=BY)
    await store.keys.revoke(key.id, by=BY)
    assert told == [1, 2, 3]
    assert await store.revision() == 3
