"""Usage in a real store: rows and progress are written together, repetitions change nothing, one reader at a time."""

import asyncio

import msgspec
import pytest

from gateway.core.ledger import Closed
from gateway.store.engine import new_engine
from gateway.store.migrate import migrate
from gateway.store.rows import Actor, Progress
from gateway.store.store import Store
from shared.errors import StoreError
from shared.settings import Settings, StoreSettings
from tests.usage.records import closed

BY = Actor("local", name="test")


class Clock:
    now = 1_000_000

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def table(store_url, tmp_path, clock):
    files = StoreSettings(url=store_url, pepper_file=str(tmp_path / "pepper"))
    store = await Store.open(msgspec.structs.replace(Settings(), store=files), now_ms=clock)
    yield store.usage
    await store.close()


def done(rid, charged=5, sequence=3, **more):
    return Closed(sequence, 1003, closed(rid, 2, charged, **more))


async def test_a_row_says_what_the_close_said(table):
    assert await table.progress() == Progress(0, 0, 1)
    close = closed("r", 2, 5, generated=8, cached=3, device_seconds=0.5, queue_ms=1.5)
    await table.record([Closed(3, 1003, msgspec.structs.replace(close, label="mine"))], Progress(3, 99, 2))
    [row] = await table.rows()
    assert (row.id, row.request_id, row.tenant_id, row.key_id, row.model, row.version) == (
        "r",
        "mine",
        "t1",
        "k1",
        "m",
        "1",
    )
    assert (row.sequence, row.closed_at, row.outcome) == (3, 1003, "stop")
    assert (row.prompt, row.cached, row.charged, row.generated, row.device_seconds, row.queue_ms) == (
        7,
        3,
        5,
        8,
        0.5,
        1.5,
    )
    assert await table.progress() == Progress(3, 99, 2)


async def test_repeating_a_batch_changes_nothing_and_the_first_row_stays(table):
    for _ in range(2):
        await table.record([done("a"), done("b")], Progress(3, 9, 4))
    await table.record([done("a", 999), done("c"), done("c", 7)], Progress(5, 9, 6))
    assert {row.id: row.charged for row in await table.rows()} == {"a": 5, "b": 5, "c": 5}
    assert await table.known(["a", "c", "x"]) == {"a", "c"}


async def test_rows_and_progress_are_written_together_or_not_at_all(table, monkeypatch):
    await table.record([done("a")], Progress(3, 9, 4))
    broken = Progress(applied=None, applied_at=9, floor=4)
    with pytest.raises((StoreError, Exception), match=r"(?i)not[ -]null"):
        await table.record([done("b")], broken)
    assert [row.id for row in await table.rows()] == ["a"]
    assert (await table.progress()).applied == 3


async def test_whatever_a_peer_writes_becomes_a_row(table):
    odd = done(
        "odd", 2**63 - 1, device_seconds=float("nan"), queue_ms=float("inf"), prefill_ms=-1.0, outcome="x" * 500 + "\0"
    )
    await table.record([odd], Progress(3, 9, 4))
    [row] = await table.rows()
    assert (row.charged, row.device_seconds, row.queue_ms, row.prefill_ms, row.outcome) == (
        2**53,
        0.0,
        0.0,
        0.0,
        "x" * 64,
    )


async def test_newest_first_and_one_tenants(table):
    other = msgspec.structs.replace(closed("o", 2, 1), tenant="t2")
    await table.record(
        [Closed(1, 10, closed("a", 1, 1)), Closed(2, 30, closed("b", 1, 1)), Closed(3, 20, other)], Progress(3, 9, 4)
    )
    assert [row.id for row in await table.rows()] == ["b", "o", "a"]
    assert [row.id for row in await table.rows(tenant_id="t1", most=1)] == ["b"]


async def test_one_holder_at_a_time_until_it_gives_up_or_its_time_is_over(table, clock):
    assert await table.lease("usage", "g1", 100)
    assert not await table.lease("usage", "g2", 100)
    assert await table.lease("other", "g2", 100)
    clock.now += 90
    assert await table.lease("usage", "g1", 100)
    clock.now += 90
    assert not await table.lease("usage", "g2", 100)
    clock.now += 10
    assert await table.lease("usage", "g2", 100)
    await table.release("usage", "g1")
    assert not await table.lease("usage", "g1", 100)
    await table.release("usage", "g2")
    assert await table.lease("usage", "g1", 100)


async def test_of_ten_that_ask_together_one_gets_it(table):
    assert sum(await asyncio.gather(*(table.lease("usage", f"g{number}", 100) for number in range(10)))) == 1


async def test_usage_goes_forwards_and_back_with_the_migrations(store_url, tmp_path):
    """Down: usage is forgotten, tenants stay. Up again: nothing was read, so the stream is read from its start."""
    files = StoreSettings(url=store_url, pepper_file=str(tmp_path / "pepper"))
    wanted = msgspec.structs.replace(Settings(), store=files)
    opened = await Store.open(wanted)
    await opened.tenants.create("acme", by=BY)
    await opened.usage.record([done("a")], Progress(3, 9, 4))
    await opened.close()
    engine = new_engine(store_url)
    await migrate(engine, "0002")
    await engine.dispose()
    again = await Store.open(wanted)
    assert [tenant.name for tenant in await again.tenants.all()] == ["acme"]
    assert await again.usage.rows() == ()
    assert await again.usage.progress() == Progress()
    await again.close()
