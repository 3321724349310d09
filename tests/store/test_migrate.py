import sqlite3
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy import inspect as look

import gateway.store
from gateway.core.keys import fingerprint
from gateway.core.quotas import Limits
from gateway.store import schema
from gateway.store.engine import new_engine
from gateway.store.migrate import HEAD, migrate
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.errors import StoreError

BY = Actor("local", name="test")

STEPS = ["0001", "0002", "0003", "0004"]


def script():
    config = Config()
    config.set_main_option("script_location", str(Path(gateway.store.__file__).parent / "migrations"))
    return ScriptDirectory.from_config(config)


def file_of(settings):
    return settings.store.url.removeprefix("sqlite+aiosqlite:///")


async def go(settings, target):
    engine = new_engine(settings.store.url)
    try:
        await migrate(engine, target)
    finally:
        await engine.dispose()


def rows(settings, query):
    connection = sqlite3.connect(file_of(settings))
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_head_is_the_newest_step_and_the_steps_are_one_line():
    assert script().get_current_head() == HEAD
    assert [step.revision for step in reversed(list(script().walk_revisions()))] == STEPS


async def test_the_steps_make_the_tables_that_the_code_uses(settings, tmp_path):
    await go(settings, HEAD)
    drawn = create_engine(f"sqlite:///{tmp_path}/drawn.db")
    schema.metadata.create_all(drawn)
    migrated = create_engine(f"sqlite:///{file_of(settings)}")

    def shape(engine):
        inspector = look(engine)
        return {
            table: (
                sorted((c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)),
                inspector.get_pk_constraint(table),
                sorted((i["name"], i["column_names"], i["unique"]) for i in inspector.get_indexes(table)),
                sorted((u["name"], u["column_names"]) for u in inspector.get_unique_constraints(table)),
                [(f["name"], f["constrained_columns"], f["referred_table"]) for f in inspector.get_foreign_keys(table)],
                inspector.get_check_constraints(table),
            )
            for table in inspector.get_table_names()
            if table != "alembic_version"
        }

    assert shape(migrated) == shape(drawn)
    drawn.dispose()
    migrated.dispose()


async def test_data_goes_forwards_and_back(settings):
    await go(settings, "0001")
    connection = sqlite3.connect(file_of(settings))
    with connection:
        connection.execute("INSERT INTO tenants VALUES ('t1', 'acme', 5, NULL)")
        connection.execute("INSERT INTO keys VALUES ('k1', 't1', 'old', x'01', 'ef-old', 6, NULL, NULL)")
    connection.close()
    (identity,) = rows(settings, "SELECT store_id FROM identity")

    store = await Store.open(settings)  # brings it to HEAD
    assert store.store_id == identity[0]
    (tenant,) = await store.tenants.all()
    assert (tenant.name, tenant.created_at, tenant.zone) == ("acme", 5, "UTC")
    await store.tenants.create("bounded", limits=Limits(streams=3), by=BY)
    _, secret = await store.keys.create("bounded", "new", by=BY)
    await store.close()

    await go(settings, "0003")
    assert rows(settings, "SELECT name, max_streams FROM tenants ORDER BY name") == [("acme", None), ("bounded", 3)]
    await go(settings, "0001")
    assert rows(settings, "SELECT * FROM tenants WHERE id = 't1'") == [("t1", "acme", 5, None)]
    kept = rows(settings, "SELECT hash FROM keys ORDER BY name DESC")
    assert kept == [(b"\x01",), (fingerprint(store.pepper, secret),)]
    assert rows(settings, "SELECT version_num FROM alembic_version") == [("0001",)]

    again = await Store.open(settings)
    assert [t.zone for t in await again.tenants.all()] == ["UTC", "UTC"]
    assert len((await again.snapshot()).credentials) == 2
    await again.close()


async def test_all_the_way_down_and_up(settings):
    await go(settings, HEAD)
    (first,) = rows(settings, "SELECT store_id FROM identity")
    await go(settings, "base")
    tables = {name for (name,) in rows(settings, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"alembic_version"}
    await go(settings, HEAD)
    assert rows(settings, "SELECT number FROM revision") == [(0,)]
    assert rows(settings, "SELECT store_id FROM identity") != [first]


async def test_a_step_that_fails_leaves_the_store_as_it_was(settings):
    await go(settings, "0001")
    connection = sqlite3.connect(file_of(settings))
    with connection:  # something that the next step trips over
        connection.execute("ALTER TABLE tenants ADD COLUMN max_streams INTEGER")
    connection.close()
    before = rows(settings, "SELECT sql FROM sqlite_master ORDER BY name")
    with pytest.raises(StoreError, match="duplicate column"):
        await Store.open(settings)
    assert rows(settings, "SELECT sql FROM sqlite_master ORDER BY name") == before
    assert rows(settings, "SELECT version_num FROM alembic_version") == [("0001",)]


async def test_a_store_of_a_newer_evenflow_is_refused(settings):
    await go(settings, HEAD)
    connection = sqlite3.connect(file_of(settings))
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match="step 9999, made by a newer Evenflow"):
        await Store.open(settings)


async def test_the_file_is_in_wal_mode_with_foreign_keys(settings, store):
    assert rows(settings, "PRAGMA journal_mode") == [("wal",)]
    async with store._database.read() as connection:
        assert (await connection.exec_driver_sql("PRAGMA foreign_keys")).scalar_one() == 1
        assert (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one() >= 5000
