"""PostgreSQL as it is in production: cut, restarted, hanging, locked, set up otherwise, used by several at once."""

import asyncio
import contextlib
import time

import asyncpg
import pytest
from msgspec.structs import replace
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from gateway.services.keyring import Keyring
from gateway.store import engine as engines
from gateway.store import migrate as migrating
from gateway.store.engine import new_engine
from gateway.store.migrate import ADVISORY_LOCK, migrate
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.errors import AuthenticationError, StoreError
from tests.store.postgres import name_of
from tests.store.raw import rows

BY = Actor("local", name="test")
SOON_S = 30.0
"""Of things that take milliseconds: a deadline that tells a wait that ends from one that does not."""


@pytest.fixture
def settings(postgres_settings):
    return postgres_settings


@pytest.fixture
def short(monkeypatch):
    """Waits that end soon; taken before the store is opened."""
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_MS", 300)
    monkeypatch.setattr(engines, "CONNECT_S", 1.0)
    monkeypatch.setattr(engines, "ANSWER_S", engines.STATEMENT_S - 19.0)
    monkeypatch.setattr(engines, "TRANSACTION_S", 3.0)


@contextlib.asynccontextmanager
async def session(url):
    """A connection past SQLAlchemy and the store."""
    url = make_url(url)
    connection = await asyncpg.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, database=url.database
    )
    try:
        yield connection
    finally:
        connection.terminate()


def cut(postgres, settings):
    """End every session in the test's database, as an administrator, a failover or a firewall does."""
    found = postgres.sql(
        f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name_of(settings.store.url)}'"
    )
    assert "t" in found, "there were connections to cut"


async def test_connections_that_were_cut_while_idle_are_not_noticed(store, settings, postgres):
    await store.tenants.create("acme", by=BY)
    for _ in range(3):
        cut(postgres, settings)
        assert await store.revision() == 1
    cut(postgres, settings)
    await store.keys.create("acme", "k", by=BY)
    assert await store.revision() == 2


async def test_a_change_that_was_cut_leaves_nothing_and_can_be_repeated(store, settings, postgres):
    await store.tenants.create("acme", by=BY)

    async def half():
        async with store._database.change(BY, "tenant.create") as change:
            await change.connection.execute(text("INSERT INTO tenants (id, name, created_at) VALUES ('x', 'x', 1)"))
            await change.record("tenant", "x", "x", None, None)
            cut(postgres, settings)

    with pytest.raises(StoreError, match="cannot use the store"):
        await half()
    assert [tenant.name for tenant in await store.tenants.all()] == ["acme"]
    await store.tenants.create("x", by=BY)
    assert await rows(settings, "SELECT sequence FROM audit ORDER BY sequence") == [(1,), (2,)]


async def test_while_the_server_is_away_reads_fail_and_then_work_again(store, settings, postgres):
    await store.tenants.create("acme", by=BY)
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot use the store"):
                await store.revision()
        with pytest.raises(StoreError):
            await store.tenants.create("other", by=BY)
        with pytest.raises(StoreError):
            await Store.open(settings)
    finally:
        postgres.start()
    assert await store.revision() == 1
    await store.tenants.create("other", by=BY)
    assert await store.revision() == 2


async def test_the_keyring_serves_on_through_a_restart_and_learns_what_changed_since(store, settings, postgres):
    await store.tenants.create("acme", by=BY)
    key, secret = await store.keys.create("acme", "k", by=BY)
    keyring = Keyring(store.pepper, time.time)
    async with keyring.watch(store, every_s=0.02) as watch, asyncio.timeout(2 * SOON_S):

        async def until(condition):
            while not condition():
                await asyncio.sleep(0.01)

        await until(lambda: len(keyring) == 1)
        await asyncio.to_thread(postgres.stop)
        try:
            await until(lambda: watch._failures)
            assert keyring.check(secret).tenant_name == "acme"
        finally:
            postgres.start()
        await store.keys.revoke(key.id, by=BY)
        await until(lambda: not watch._failures and len(keyring) == 0)
        with pytest.raises(AuthenticationError):
            keyring.check(secret)


async def test_a_lock_that_somebody_keeps_ends_the_wait_with_a_clear_error(short, settings):
    store = await Store.open(settings)
    async with session(settings.store.url) as other:
        async with other.transaction():
            await other.execute("LOCK TABLE tenants, revision IN ACCESS EXCLUSIVE MODE")
            async with asyncio.timeout(SOON_S):
                with pytest.raises(StoreError, match="lock timeout"):
                    await store.tenants.create("acme", by=BY)
                with pytest.raises(StoreError, match="lock timeout"):
                    await store.revision()
        await store.tenants.create("acme", by=BY)
    await store.close()


async def test_a_statement_that_hangs_is_ended_by_the_server(settings):
    engine = new_engine(settings.store.url, 0.2)
    async with asyncio.timeout(SOON_S), engine.connect() as connection:
        with pytest.raises(DBAPIError, match="statement timeout"):
            await connection.execute(text("SELECT pg_sleep(3600)"))
    await engine.dispose()


async def test_every_connection_of_a_store_has_its_deadlines(store):
    async with store._database.read() as connection:
        shown = [
            (await connection.execute(text(f"SHOW {name}"))).scalar_one()
            for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "application_name")
        ]
    assert shown == ["10s", "20s", "20s", "evenflow"]


async def test_a_process_that_froze_within_a_change_loses_its_locks(settings, store, monkeypatch):
    monkeypatch.setattr(engines, "STATEMENT_S", 0.5)
    frozen = new_engine(settings.store.url, 0.5)
    async with frozen.connect() as connection:
        await connection.execute(text("UPDATE revision SET number = number + 100"))
        async with asyncio.timeout(SOON_S):
            await store.tenants.create("acme", by=BY)  # waits behind it, for less than a lock may be waited for
        with pytest.raises(DBAPIError):
            await connection.execute(text("SELECT 1"))
        await connection.invalidate()
    await frozen.dispose()
    assert await store.revision() == 1


async def test_a_server_that_says_nothing_ends_the_wait_and_is_used_again_once_it_talks(short, settings, postgres):
    store = await Store.open(settings)
    await store.tenants.create("acme", by=BY)
    with postgres.frozen():
        async with asyncio.timeout(SOON_S):
            for _ in range(2):
                with pytest.raises(StoreError, match="no answer in time"):
                    await store.revision()
            with pytest.raises(StoreError, match="no answer in time"):
                await Store.open(settings)
    async with asyncio.timeout(SOON_S):
        assert await store.revision() == 1
        await store.tenants.create("other", by=BY)
        await store.close()


@pytest.mark.parametrize("deadline", ["ANSWER_S", "TRANSACTION_S"])
async def test_of_an_answer_and_of_a_transaction_each_deadline_holds_alone(
    short, settings, postgres, monkeypatch, deadline
):
    other = {"ANSWER_S": "TRANSACTION_S", "TRANSACTION_S": "ANSWER_S"}[deadline]
    monkeypatch.setattr(engines, other, 3600.0)
    store = await Store.open(settings)
    with postgres.frozen():
        async with asyncio.timeout(SOON_S):
            with pytest.raises(StoreError, match="no answer in time"):
                await store.revision()
    async with asyncio.timeout(SOON_S):
        assert await store.revision() == 0
        await store.close()


async def test_a_transaction_that_was_open_when_the_server_froze_ends_too(short, settings, postgres):
    store = await Store.open(settings)
    async with asyncio.timeout(SOON_S):
        with postgres.frozen(), pytest.raises(StoreError):
            async with store._database.change(BY, "tenant.create") as change:
                await change.connection.execute(text("SELECT 1"))
        assert await store.revision() == 0
        await store.close()


async def test_migrating_waits_for_the_lock_and_not_for_ever(postgres, monkeypatch):
    monkeypatch.setattr(migrating, "LOCK_WAIT_S", 0.2)
    with postgres.database(empty=True) as url:
        engine = new_engine(url)
        async with session(url) as other, asyncio.timeout(SOON_S):
            await other.execute(f"SELECT pg_advisory_lock({ADVISORY_LOCK})")
            with pytest.raises(StoreError, match="another process has held"):
                await migrate(engine)
            assert await other.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
            await other.execute(f"SELECT pg_advisory_unlock({ADVISORY_LOCK})")
            await migrate(engine)
        await engine.dispose()


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_a_stricter_default_of_the_server_makes_no_change_fail(settings, postgres, level):
    postgres.sql(f"ALTER DATABASE {name_of(settings.store.url)} SET default_transaction_isolation = '{level}'")
    one, two = await Store.open(settings), await Store.open(settings)
    await one.tenants.create("acme", by=BY)
    await asyncio.gather(
        *(s.keys.create("acme", f"{n}-{i}", by=BY) for i in range(8) for n, s in enumerate((one, two)))
    )
    assert await one.revision() == 17
    assert await rows(settings, "SELECT count(*), max(sequence) FROM audit") == [(17, 17)]
    await one.close()
    await two.close()


async def test_what_reads_cannot_write(store):
    with pytest.raises(StoreError, match="read-only transaction"):
        async with store._database.read() as connection:
            await connection.execute(text("UPDATE revision SET number = 9"))
    assert await store.revision() == 0
    await store.tenants.create("acme", by=BY)  # the connection it was can write again


async def test_the_servers_socket_is_a_way_in_too(settings, postgres):
    tcp = make_url(settings.store.url)
    socket = tcp.set(host=None, port=None, query={"host": str(postgres.directory), "port": str(postgres.port)})
    there = replace(settings, store=replace(settings.store, url=socket.render_as_string(hide_password=False)))
    store = await Store.open(there)
    await store.tenants.create("acme", by=BY)
    assert await rows(settings, "SELECT name FROM tenants") == [("acme",)]
    await store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+asyncpg://u:p@h:port/d", "store.url is not a URL"),
        ("postgresql+asyncpg://u:p@h/d?sslmode=require", "the parameter sslmode; it may have .*ssl"),
    ],
)
def test_an_address_that_cannot_be_one_is_a_clear_error_without_its_password(url, says):
    with pytest.raises(StoreError, match=says) as caught:
        new_engine(url.replace(":p@", ":hunter2@"))
    assert "hunter2" not in str(caught.value)
