"""Tables that hold something go forwards and back, on both databases, and lose nothing that the older step can keep."""

import pytest
from sqlalchemy import BigInteger, Boolean, Float, Integer, LargeBinary, insert
from sqlalchemy.exc import DBAPIError

from gateway.store import schema
from gateway.store.engine import new_engine
from gateway.store.migrate import HEAD
from gateway.store.rows import Actor
from gateway.store.store import Store
from tests.store.raw import go, rows, run

BY = Actor("local", name="test")
DAY_MS = 86_400_000
USAGE = (
    "INSERT INTO usage (id, sequence, closed_at, request_id, tenant_id, key_id, model, version, outcome, prompt, cached, "
    "charged, generated, accepted, proposed, device_seconds, queue_ms, prefill_ms, decode_ms) "
    "VALUES ('{id}', {n}, {at}, 'r', 't1', 'k1', 'm', '1', '{outcome}', 10, 1, {charged}, 9, 2, 3, 0.5, 1, 2, 3)"
)
AT_0003 = (
    "INSERT INTO tenants VALUES ('t1', 'acme', 5, NULL, 3), ('t2', 'unbounded', 6, 7, NULL)",
    "INSERT INTO keys VALUES ('k1', 't1', 'old', :one, 'ef-old', 6, NULL, NULL)",
    "INSERT INTO keys VALUES ('k2', 't1', 'old', :two, 'ef-gone', 6, 8, 9)",
    USAGE.format(id="u1", n=1, at=DAY_MS - 1, outcome="stop", charged=4),
    USAGE.format(id="u2", n=2, at=DAY_MS, outcome="length", charged=5),
    USAGE.format(id="u3", n=3, at=DAY_MS + 1, outcome="worker_lost", charged=2**53),
    "UPDATE usage_progress SET applied = 3, applied_at = 99, floor = 2",
    "INSERT INTO leases VALUES ('usage', 'g1', 1)",
    "UPDATE revision SET number = 17",
)
KEPT = (
    "SELECT id, name, created_at, disabled_at FROM tenants ORDER BY id",
    "SELECT id, tenant_id, name, hash, display, created_at, expires_at, revoked_at FROM keys ORDER BY id",
    "SELECT id, sequence, closed_at, tenant_id, outcome, prompt, charged, device_seconds FROM usage ORDER BY id",
    "SELECT applied, applied_at, floor FROM usage_progress",
    "SELECT name, holder FROM leases",
    "SELECT store_id FROM identity",
    "SELECT number FROM revision",
)


@pytest.fixture
def settings(empty_settings):
    return empty_settings


async def kept(settings):
    return [await rows(settings, query) for query in KEPT]


async def test_what_was_there_goes_up_down_and_up(settings):
    await go(settings, "0003")
    await run(settings, *AT_0003, one=b"\x01" * 32, two=b"\x02" * 32)
    before = await kept(settings)
    for _ in range(2):
        await go(settings, HEAD)
        assert await kept(settings) == before
        assert await rows(settings, "SELECT tenant_id, key_id, model, streams FROM quotas") == [("t1", "", "", 3)]
        assert await rows(settings, "SELECT id, day FROM usage ORDER BY id") == [
            ("u1", 719163), ("u2", 719164), ("u3", 719164),
        ]  # fmt: skip
        assert await rows(
            settings,
            "SELECT tenant_id, day, key_id, model, version, requests, failed, prompt, cached, charged, generated, "
            "accepted, proposed, device_seconds FROM usage_days ORDER BY day",
        ) == [
            ("t1", 719163, "k1", "m", "1", 1, 0, 10, 1, 4, 9, 2, 3, 0.5),
            ("t1", 719164, "k1", "m", "1", 2, 1, 20, 2, 2**53 + 5, 18, 4, 6, 1.0),
        ]
        await go(settings, "0003")
        assert await kept(settings) == before
        assert await rows(settings, "SELECT name, max_streams FROM tenants ORDER BY name") == [
            ("acme", 3), ("unbounded", None),
        ]  # fmt: skip
    store = await Store.open(settings)  # and is used
    assert [tenant.name for tenant in await store.tenants.all()] == ["acme", "unbounded"]
    assert [key.name for key in await store.keys.all("acme")] == ["old", "old"]
    await store.keys.revoke("k1", by=BY)
    await store.close()


async def test_whatever_the_newest_tables_hold_they_go_back_and_come_again(settings):
    await go(settings, HEAD)
    await fill(settings)
    # As many streams as nobody has; a key that was rotated, with the one that took its name.
    await run(
        settings,
        f"UPDATE quotas SET streams = {2**53}, key_id = '', model = ''",
        "UPDATE keys SET replaced_by = 'other', revoked_at = NULL",
        "INSERT INTO keys (id, tenant_id, name, hash, display, created_at) "
        "SELECT 'other', tenant_id, name, :hash, display, created_at FROM keys",
        hash=b"\x07" * 32,
    )
    await go(settings, "0003")
    [(tenant, most)] = await rows(settings, "SELECT name, max_streams FROM tenants")
    assert most == 2**31 - 1
    keys = await rows(settings, "SELECT id, name, revoked_at IS NULL FROM keys ORDER BY revoked_at IS NULL")
    assert [(name, bool(live)) for _, name, live in keys] == [(keys[0][1], False), (keys[0][1], True)]
    assert keys[1][0] == "other"
    await go(settings, HEAD)
    assert await rows(settings, "SELECT name, version FROM tenants") == [(tenant, 1)]
    assert await rows(settings, "SELECT count(*) FROM audit") == [(0,)]
    await go(settings, "base")
    await go(settings, HEAD)


async def fill(settings):
    """A row in every table that may have one."""
    engine = new_engine(settings.store.url)
    async with engine.begin() as connection:
        for table in schema.metadata.sorted_tables:
            if "one" not in table.c:  # those have their row
                await connection.execute(insert(table).values({column.name: value(column) for column in table.c}))
            found = await connection.exec_driver_sql(f"SELECT count(*) FROM {table.name}")
            assert found.scalar_one() == 1, table.name
    await engine.dispose()


def value(column):
    """Something of its type: a foreign key's is that of the row it names."""
    kinds = {Boolean: True, BigInteger: 2**53, Integer: 2**31 - 1, Float: 0.5, LargeBinary: b"\x01" * 32}
    for kind, one in kinds.items():
        if isinstance(column.type, kind):
            return one
    return "a" * min(getattr(column.type, "length", None) or 36, 36)


async def test_the_audit_log_only_grows(settings):
    store = await Store.open(settings)
    await store.tenants.create("acme", by=BY)
    await store.close()
    forbidden = ["UPDATE audit SET actor_name = 'somebody else'", "DELETE FROM audit"]
    if settings.store.url.startswith("postgresql"):
        forbidden += ["TRUNCATE audit", "DELETE FROM audit WHERE false"]
    for statement in forbidden:
        with pytest.raises(DBAPIError, match="the audit log only grows"):
            await run(settings, statement)
    assert await rows(settings, "SELECT sequence, actor_name FROM audit") == [(1, "test")]
