"""What keys may do, how they are changed and rotated, and when they were last used."""

import itertools

import msgspec
import pytest
from msgspec.structs import replace
from sqlalchemy import select

from gateway.core.accounts import Limits
from gateway.core.keys import SCOPES, fingerprint
from gateway.store import schema
from gateway.store.rows import Actor
from shared.errors import ConflictError, InvalidRecordError, StaleRecordError, UnknownRecordError

BY = Actor("local", name="test")
DAY_MS = 86_400_000


@pytest.fixture
async def acme(store):
    return await store.tenants.create("acme", by=BY)


async def recorded(store):
    """Every entry of the audit log as (action, kind, before, after)."""
    async with store._database.read() as connection:
        rows = (await connection.execute(select(schema.audit).order_by(schema.audit.c.sequence))).all()
    return [
        (row.action, row.kind, *(text and msgspec.json.decode(text) for text in (row.before, row.after)))
        for row in rows
    ]


async def test_a_key_may_do_everything_unless_told_otherwise(store, acme):
    key, _ = await store.keys.create("acme", "k", by=BY)
    assert (key.scopes, key.models, key.networks, key.expires_at) == (SCOPES, None, None, None)


async def test_what_a_key_may_do_is_kept_in_one_form(store, acme):
    key, secret = await store.keys.create(
        "acme",
        "k",
        scopes=["usage", "inference", "usage"],
        models=["llama-*", "org/model-1", "llama-*"],
        networks=["2001:DB8::/32", "192.0.2.1", "192.0.2.1/32"],
        by=BY,
    )
    assert key.scopes == ("inference", "usage")
    assert key.models == ("llama-*", "org/model-1")
    assert key.networks == ("2001:db8::/32", "192.0.2.1/32")
    (credential,) = (await store.snapshot()).credentials
    assert credential.hash == fingerprint(store.pepper, secret)
    assert (credential.scopes, credential.models, credential.networks) == (key.scopes, key.models, key.networks)
    assert await store.keys.one("k") == key


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"scopes": ["admin"]}, "no scope 'admin'"),
        ({"scopes": []}, "1 to 100 scopes"),
        ({"models": []}, "1 to 100 models"),
        ({"models": ["a*b"]}, "no model's name"),
        ({"models": [""]}, "no model's name"),
        ({"models": ["a\n"]}, "no model's name"),
        ({"models": ["m" * 256]}, "no model's name"),
        ({"models": [str(n) for n in range(101)]}, "1 to 100 models, not 101"),
        ({"networks": []}, "1 to 100 networks"),
        ({"networks": ["10.1.2.3/8"]}, "the network is 10.0.0.0/8"),
        ({"networks": ["here"]}, "'here' is no network"),
        ({"expires_at": 1_700_000_000_000}, "in the future"),
        ({"expires_at": 10**18}, "in the future"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_kept(store, acme, rules, told):
    with pytest.raises(InvalidRecordError, match=told):
        await store.keys.create("acme", "k", by=BY, **rules)
    assert await store.keys.all() == ()
    key, _ = await store.keys.create("acme", "k", by=BY)
    with pytest.raises(InvalidRecordError, match=told):
        await store.keys.update("k", by=BY, **rules)
    assert await store.keys.one("k") == key


async def test_changing_what_a_key_may_do(store, acme, clock):
    key, secret = await store.keys.create("acme", "k", models=["a"], networks=["10.0.0.0/8"], by=BY)
    clock.now += 5
    changed = await store.keys.update("k", models=["b"], expires_at=clock.now + 1, by=BY, version=1)
    assert changed == replace(key, models=("b",), expires_at=clock.now + 1, version=2)
    changed = await store.keys.update(key.id, models=None, networks=None, scopes=["usage"], expires_at=None, by=BY)
    assert changed == replace(key, models=None, networks=None, scopes=("usage",), version=3)
    assert (await store.snapshot()).credentials[0].hash == fingerprint(store.pepper, secret)
    entries = await recorded(store)
    assert [entry[:2] for entry in entries[-2:]] == [("key.update", "key")] * 2
    assert (entries[-1][2]["models"], entries[-1][3]["models"]) == (["b"], None)


async def test_a_change_that_was_meant_for_another_version_is_refused(store, acme):
    await store.keys.create("acme", "k", by=BY)
    await store.keys.update("k", models=["a"], by=BY)
    revision = await store.revision()
    for change in (
        store.keys.update("k", models=["b"], by=BY, version=1),
        store.keys.rotate("k", 0, by=BY, version=1),
        store.keys.revoke("k", by=BY, version=1),
    ):
        with pytest.raises(StaleRecordError, match="at version 2, not 1"):
            await change
    assert (await store.keys.one("k")).models == ("a",)
    assert await store.revision() == revision


async def test_a_revoked_key_is_not_changed(store, acme):
    await store.keys.create("acme", "k", by=BY)
    revoked = await store.keys.revoke("k", by=BY)
    for change in (store.keys.update("k", models=["b"], by=BY), store.keys.rotate("k", 0, by=BY)):
        with pytest.raises(ConflictError, match="was revoked"):
            await change
    with pytest.raises(UnknownRecordError):
        await store.keys.update("nope", models=None, by=BY)
    assert await store.keys.all() == (revoked,)


async def test_rotating_with_an_overlap(store, acme, clock):
    old, _ = await store.keys.create(
        "acme",
        "k",
        models=["a"],
        networks=["10.0.0.0/8"],
        scopes=["inference"],
        expires_at=clock.now + 9 * DAY_MS,
        by=BY,
    )
    clock.now += 5
    new, secret = await store.keys.rotate("k", 3600, by=BY)
    before = await store.keys.one(old.id)
    assert before == replace(old, replaced_by=new.id, expires_at=clock.now + 3_600_000, version=2)
    assert new == replace(old, id=new.id, display=new.display, created_at=clock.now)
    assert new.display != old.display
    assert {row.key_id for row in (await store.snapshot()).credentials} == {old.id, new.id}
    clock.now += 3_600_000
    (credential,) = (await store.snapshot()).credentials
    assert credential.hash == fingerprint(store.pepper, secret)
    assert [entry[:2] for entry in (await recorded(store))[-2:]] == [("key.rotate", "key")] * 2


async def test_without_an_overlap_the_old_key_ends_at_once(store, acme, clock):
    old, _ = await store.keys.create("acme", "k", by=BY)
    new, _ = await store.keys.rotate("k", 0, by=BY)
    assert (await store.keys.one(old.id)).expires_at == clock.now
    assert [row.key_id for row in (await store.snapshot()).credentials] == [new.id]


async def test_an_overlap_never_makes_a_key_live_longer(store, acme, clock):
    old, _ = await store.keys.create("acme", "k", expires_at=clock.now + 1000, by=BY)
    await store.keys.rotate("k", 3600, by=BY)
    assert (await store.keys.one(old.id)).expires_at == old.expires_at


async def test_what_cannot_be_rotated(store, acme, clock):
    old, _ = await store.keys.create("acme", "k", expires_at=clock.now + 1000, by=BY)
    for overlap in (-1, 367 * 86_400, float("nan"), float("inf")):
        with pytest.raises(InvalidRecordError, match="overlap"):
            await store.keys.rotate("k", overlap, by=BY)
    await store.keys.rotate("k", 1, by=BY)
    with pytest.raises(ConflictError, match="rotated already"):
        await store.keys.rotate(old.id, 1, by=BY)
    with pytest.raises(InvalidRecordError, match="has to expire"):
        await store.keys.update(old.id, expires_at=None, by=BY)
    await store.keys.update(old.id, expires_at=clock.now + 5000, by=BY)  # programs that need some more time
    clock.now += 1000
    with pytest.raises(ConflictError, match="has expired"):
        await store.keys.rotate("k", 1, by=BY)
    assert len(await store.keys.all()) == 2


async def test_a_rotated_key_can_be_rotated_again_and_its_name_means_the_newest(store, acme):
    ids = [(await store.keys.create("acme", "k", by=BY))[0].id]
    ids += [(await store.keys.rotate("k", 60, by=BY))[0].id for _ in range(3)]
    assert [(await store.keys.one(one)).replaced_by for one in ids] == [*ids[1:], None]
    assert (await store.keys.one("k")).id == ids[-1]
    assert (await store.keys.revoke("k", by=BY)).id == ids[-1]
    await store.keys.create("acme", "k", by=BY)
    with pytest.raises(ConflictError):
        await store.keys.create("acme", "k", by=BY)


async def test_limits_of_a_key_go_on_for_the_one_that_replaces_it(store, acme):
    old, _ = await store.keys.create("acme", "k", by=BY)
    other, _ = await store.keys.create("acme", "other", by=BY)
    await store.quotas.set("acme", Limits(tokens=10), key="k", by=BY)
    await store.quotas.set("acme", Limits(requests=3), key="k", model="m", by=BY)
    await store.quotas.set("acme", Limits(streams=1), key="other", by=BY)
    await store.quotas.set("acme", Limits(daily=1), by=BY)
    new, _ = await store.keys.rotate("k", 60, by=BY)
    limits = {(row.key_id, row.model): row.limits for row in await store.quotas.of_tenant("acme")}
    for key in (old, new):
        assert (limits[key.id, ""], limits[key.id, "m"]) == (Limits(tokens=10), Limits(requests=3))
    assert limits[other.id, ""] == Limits(streams=1)
    assert len(limits) == 6
    entries = [(action, kind, before) for action, kind, before, _ in await recorded(store)]
    assert entries[-2:] == [("key.rotate", "quota", None)] * 2


async def test_when_a_key_was_last_used_is_noted_beside_the_changes(store, acme, clock):
    keys = [(await store.keys.create("acme", f"k{n}", by=BY))[0] for n in range(3)]
    revision, entries = await store.revision(), await recorded(store)
    await store.keys.used({keys[0].id: clock.now + 5, keys[1].id: clock.now + 6, "no such key": 1})
    await store.keys.used({keys[0].id: clock.now + 4, keys[1].id: clock.now + 7})  # another gateway's, late
    after = [await store.keys.one(key.id) for key in keys]
    assert [row.last_used_at for row in after] == [clock.now + 5, clock.now + 7, None]
    assert [row.version for row in after] == [1, 1, 1]
    assert (await store.revision(), await recorded(store)) == (revision, entries)


async def test_times_of_keys_and_rotations_of_two_tenants_do_not_meet(store, acme):
    await store.tenants.create("other", by=BY)
    for tenant in ("acme", "other"):
        await store.keys.create(tenant, "k", by=BY)
    with pytest.raises(UnknownRecordError, match="several tenants"):
        await store.keys.rotate("k", 60, by=BY)
    await store.keys.rotate("k", 60, tenant="other", by=BY)
    names = [(row.tenant_name, row.replaced_by is None) for row in await store.keys.all()]
    assert [(name, len(list(group))) for name, group in itertools.groupby(names, lambda n: n[0])] == [
        ("acme", 1),
        ("other", 2),
    ]
