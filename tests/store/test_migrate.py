from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import inspect as look

import gateway.store
from gateway.core.accounts import Limits
from gateway.core.keys import fingerprint
from gateway.store import schema
from gateway.store.engine import new_engine
from gateway.store.migrate import HEAD
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.errors import StoreError
from tests.store.raw import go, rows, run

BY = Actor("local", name="test")

STEPS = ["0001", "0002", "0003", "0004"]


@pytest.fixture
def settings(empty_settings):
    return empty_settings


def script():
    config = Config()
    config.set_main_option("script_location", str(Path(gateway.store.__file__).parent / "migrations"))
    return ScriptDirectory.from_config(config)


def test_head_is_the_newest_step_and_the_steps_are_one_line():
    assert script().get_current_head() == HEAD
    assert [step.revision for step in reversed(list(script().walk_revisions()))] == STEPS


async def test_the_steps_make_the_tables_that_the_code_uses(settings):
    engine = new_engine(settings.store.url)
    await go(settings, HEAD)
    migrated = await shape(engine)
    await go(settings, "base")
    async with engine.begin() as connection:
        await connection.run_sync(schema.metadata.create_all)
    assert migrated == await shape(engine)
    await engine.dispose()


async def shape(engine):
    """Everything that can be said about the tables."""

    def look_at(connection):
        inspector = look(connection)
        return {
            table: (
                sorted(
                    (c["name"], str(c["type"]), c["nullable"], str(c["default"])) for c in inspector.get_columns(table)
                ),
                inspector.get_pk_constraint(table),
                sorted((i["name"], i["column_names"], i["unique"]) for i in inspector.get_indexes(table)),
                sorted((u["name"], u["column_names"]) for u in inspector.get_unique_constraints(table)),
                [(f["name"], f["constrained_columns"], f["referred_table"]) for f in inspector.get_foreign_keys(table)],
                inspector.get_check_constraints(table),
                sorted(
                    (index["name"], option, str(value))
                    for index in inspector.get_indexes(table)
                    for option, value in index["dialect_options"].items()
                ),
            )
            for table in inspector.get_table_names()
            if table != "alembic_version"
        }

    async with engine.connect() as connection:
        return await connection.run_sync(look_at)


async def test_data_goes_forwards_and_back(settings):
    await go(settings, "0001")
    await run(
        settings,
        "INSERT INTO tenants VALUES ('t1', 'acme', 5, NULL)",
        "INSERT INTO keys VALUES ('k1', 't1', 'old', :hash, 'ef-old', 6, NULL, NULL)",
        hash=b"\x01",
    )
    (identity,) = await rows(settings, "SELECT store_id FROM identity")

    store = await Store.open(settings)  # brings it to HEAD
    assert store.store_id == identity[0]
    (tenant,) = await store.tenants.all()
    assert (tenant.name, tenant.created_at, tenant.zone) == ("acme", 5, "UTC")
    await store.tenants.create("bounded", limits=Limits(streams=3), by=BY)
    _, secret = await store.keys.create("bounded", "new", by=BY)
    await store.close()

    await go(settings, "0003")
    assert await rows(settings, "SELECT name, max_streams FROM tenants ORDER BY name") == [
        ("acme", None),
        ("bounded", 3),
    ]
    await go(settings, "0001")
    assert await rows(settings, "SELECT * FROM tenants WHERE id = 't1'") == [("t1", "acme", 5, None)]
    kept = await rows(settings, "SELECT hash FROM keys ORDER BY name DESC")
    assert kept == [(b"\x01",), (fingerprint(store.pepper, secret),)]
    assert await rows(settings, "SELECT version_num FROM alembic_version") == [("0001",)]

    again = await Store.open(settings)
    assert [t.zone for t in await again.tenants.all()] == ["UTC", "UTC"]
    assert len((await again.snapshot()).credentials) == 2
    await again.close()


async def test_all_the_way_down_and_up(settings):
    await go(settings, HEAD)
    (first,) = await rows(settings, "SELECT store_id FROM identity")
    await go(settings, "base")
    engine = new_engine(settings.store.url)
    assert await shape(engine) == {}
    await engine.dispose()
    await go(settings, HEAD)
    assert await rows(settings, "SELECT number FROM revision") == [(0,)]
    assert await rows(settings, "SELECT store_id FROM identity") != [first]


async def test_a_step_that_fails_leaves_the_store_as_it_was(settings):
    await go(settings, "0001")
    # Something that a later step trips over.
    await run(settings, "CREATE TABLE leases (name VARCHAR(63))")
    engine = new_engine(settings.store.url)
    before = await shape(engine)
    with pytest.raises(StoreError, match=r"leases.* already exists"):
        await Store.open(settings)
    assert await shape(engine) == before
    await engine.dispose()
    assert await rows(settings, "SELECT version_num FROM alembic_version") == [("0001",)]


async def test_a_store_of_a_newer_evenflow_is_refused(settings):
    await go(settings, HEAD)
    await run(settings, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="step 9999, made by a newer Evenflow"):
        await Store.open(settings)


async def test_the_file_is_in_wal_mode_with_foreign_keys(sqlite_settings):
    store = await Store.open(sqlite_settings)
    assert await rows(sqlite_settings, "PRAGMA journal_mode") == [("wal",)]
    async with store._database.read() as connection:
        assert (await connection.exec_driver_sql("PRAGMA foreign_keys")).scalar_one() == 1
        assert (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one() >= 5000
    await store.close()
