"""The keeper of the table with real NATS: takeovers that nobody noticed, rows that are too old, and what is compared."""

import asyncio
import time

import msgspec
import pytest
from msgspec.structs import replace

from gateway.core.daily import folded
from gateway.services import ledger as keeping
from gateway.services.usage_verify import verify
from gateway.store.rows import Progress
from gateway.store.store import Store
from gateway.store.usage import place_of
from gateway.up import provision
from shared.errors import StaleRecordError
from shared.settings import Settings, StoreSettings
from tests.store.raw import run
from tests.usage.real import Books, books, server
from tests.usage.records import closed, opened

pytestmark = pytest.mark.timeout(120)

DAY_MS = 86_400_000


class Clock:
    """The store's: real time, and as much later as is said."""

    ahead_ms = 0

    def __call__(self):
        return time.time_ns() // 1_000_000 + self.ahead_ms


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def wanted(store_url, tmp_path):
    files = StoreSettings(url=store_url, pepper_file=str(tmp_path / "pepper"))
    return replace(Settings(), store=files)


@pytest.fixture
async def table(wanted, clock):
    one = await Store.open(wanted, now_ms=clock)
    yield one.usage
    await one.close()


async def whole(table):
    """Sums and rows agree; how many requests there are."""
    rows = await table.rows(most=10_000)
    kept = {}
    for tenant in await table.tenants():
        kept |= (await table.counted(tenant))[1]
    assert kept == folded((place_of(row), row) for row in rows)
    return len(rows)


# ------------------------------------------------------------------------------------------------------------ takeovers


async def test_who_was_frozen_while_another_kept_the_table_begins_where_that_one_left_off(tmp_path, table, clock):
    async with server(tmp_path) as one, books(one, table) as mine, books(one, table, "g2", "f1") as other:
        await mine.write(opened("a"), closed("a", 2, 1))
        await mine.keep()
        clock.ahead_ms += 11_000  # ours has expired, and we sleep
        await mine.write(opened("b"), closed("b", 4, 2), opened("c"), closed("c", 6, 3))
        await other.keep()
        await other.keeper.close()
        left = await table.progress()
        mine.now += 1.0
        assert mine.keeper.holding, "it has not noticed"
        with pytest.raises(StaleRecordError):
            await mine.keep()
        assert await table.progress() == left
        await mine.write(closed("d", 7, 4))
        await mine.keep()
        assert mine.keeper.holding
        assert {rid: row.charged for rid, row in (await mine.rows()).items()} == {"a": 1, "b": 2, "c": 3, "d": 4}
        assert await whole(table) == 4
        assert (await table.progress()).applied == 7


async def test_sums_and_their_place_in_the_stream_stay_together_while_a_new_reader_catches_up(
    tmp_path, table, monkeypatch
):
    """It reads from the first record of what is open, far before what is in the table: that is not written again."""
    async with server(tmp_path) as one, books(one, table) as mine:
        await mine.write(opened("open"), *(closed(f"r{n}", 2 + n, n) for n in range(300)))
        await mine.keep()
        before = await table.sums(0)
        await mine.keeper.close()
        written = []
        recording = table.record

        async def watched(batch, progress, **options):
            written.append(progress.applied)
            return await recording(batch, progress, **options)

        monkeypatch.setattr(table, "record", watched)
        again = await Books(mine.bus, table).open()
        await again.keep()
        assert again.keeper.position == 301
        assert written == []
        assert await table.sums(0) == before
        await again.write(closed("new", 999, 5))
        await again.keep()
        assert written == [302]


# ------------------------------------------------------------------------------------------------------------ retention


async def test_rows_go_after_their_days_in_small_batches_and_what_is_read_again_does_not_count_again(
    tmp_path, table, clock, monkeypatch
):
    monkeypatch.setattr(keeping, "PRUNED_AT_ONCE", 4)
    async with server(tmp_path) as one, books(one, table, keep_days=30) as mine:
        await mine.write(*(closed(f"r{n}", 1 + n, n) for n in range(10)))
        await asyncio.sleep(0.01)  # the last one lies in a millisecond of its own
        await mine.write(closed("last", 20, 1))
        await mine.keep()
        sums = await table.sums(0)
        mine.now += keeping.PRUNE_S + 1
        await mine.keep()
        assert len(await mine.rows()) == 11, "they are young"

        clock.ahead_ms += 31 * DAY_MS
        left = []
        for _ in range(5):
            mine.now += keeping.PRUNE_S + 1
            await mine.keep()
            left.append(len(await mine.rows()))
        assert left == [7, 3, 1, 1, 1]
        assert mine.keeper.pruned == 10
        assert await table.sums(0) == sums

        await table.record([], Progress())  # as if the store had never read: everything comes again
        again = await Books(mine.bus, table, keep_days=30).open()
        clock.ahead_ms += 20_000
        await again.keep()
        assert again.keeper.position == 11
        assert set(await again.rows()) == {"last"}
        assert (await table.sums(0))[1] == sums[1]


async def test_a_full_batch_is_followed_by_the_next_at_once(tmp_path, table, clock, monkeypatch):
    monkeypatch.setattr(keeping, "PRUNED_AT_ONCE", 3)
    async with server(tmp_path) as one, books(one, table, keep_days=1) as mine:
        await mine.write(*(closed(f"r{n}", 1 + n, n) for n in range(7)))
        await asyncio.sleep(0.01)
        await mine.write(closed("last", 20, 1))
        await mine.keep()
        clock.ahead_ms += 3 * DAY_MS
        mine.now += keeping.PRUNE_S + 1
        for _ in range(3):
            await mine.keep()
            mine.now += keeping.POLL_S
        assert set(await mine.rows()) == {"last"}


async def test_without_a_term_rows_stay(tmp_path, table, clock):
    async with server(tmp_path) as one, books(one, table) as mine:
        await mine.write(closed("a", 1, 1))
        await mine.keep()
        clock.ahead_ms += 10_000 * DAY_MS
        mine.now += keeping.PRUNE_S + 1
        await mine.keep()
        assert set(await mine.rows()) == {"a"}


# ------------------------------------------------------------------------------------------------------------- verified


async def told(mine):
    verdict = await verify(mine.table, mine.reader)
    assert len(verdict.differences) == verdict.different
    return [(one.kind, one.what) for one in verdict.differences], verdict


async def test_a_row_that_was_doctored_is_found_in_the_stream_and_in_its_sums(tmp_path, table, wanted):
    async with server(tmp_path) as one, books(one, table) as mine:
        assert await told(mine) == ([], msgspec.structs.replace((await told(mine))[1], first=0))
        await mine.write(*(opened(f"r{n}") for n in range(200)), *(closed(f"r{n}", 200 + n, n) for n in range(150)))
        await mine.keep()
        await mine.write(closed("r160", 999, 5))  # not in the table yet
        found, verdict = await told(mine)
        assert found == []
        assert (verdict.first, verdict.applied, verdict.requests, verdict.places) == (1, 350, 150, 1)

        await run(wanted, "UPDATE usage SET charged = charged + 1 WHERE id = 'r7'")
        found, verdict = await told(mine)
        assert [kind for kind, _ in found] == ["altered", "sums"]
        assert found[0][1] == "r7"
        assert "charged: the record says 7, the row 8" in verdict.differences[0].detail
        await run(wanted, "UPDATE usage_days SET charged = charged + 1")
        assert (await told(mine))[0] == [("altered", "r7")], "the stream knows better than both"
        await run(wanted, "UPDATE usage SET charged = 7 WHERE id = 'r7'", "UPDATE usage_days SET charged = charged - 1")
        assert (await told(mine))[0] == []

        await run(wanted, "DELETE FROM usage WHERE id = 'r9'")
        await run(wanted, "UPDATE usage SET id = 'made-up' WHERE id = 'r10'")
        found, _ = await told(mine)
        assert found[:3] == [("missing", "r9"), ("missing", "r10"), ("unknown", "made-up")]
        assert [kind for kind, _ in found[3:]] == ["sums"]


async def test_what_the_stream_has_dropped_cannot_be_compared_and_it_says_so(tmp_path, table, wanted, monkeypatch):
    monkeypatch.setitem(provision.STREAM, "max_bytes", 40_000)
    async with server(tmp_path) as one, books(one, table) as mine:
        for start in range(0, 400, 50):
            await mine.write(*(closed(f"r{n}", 1 + n, n) for n in range(start, start + 50)))
            await mine.keep()
        found, verdict = await told(mine)
        assert found == []
        assert 10 < verdict.first < 400
        assert verdict.requests == 401 - verdict.first
        assert verdict.first_at >= max(
            row.closed_at for row in await table.rows(most=400) if row.sequence < verdict.first
        )
        await run(wanted, "UPDATE usage SET charged = 1000000 WHERE id = 'r5'")
        assert [kind for kind, _ in (await told(mine))[0]] == ["sums"]


async def test_another_stream_is_not_compared(tmp_path, table):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with server(first) as one, books(one, table) as mine:
        await mine.write(*(closed(f"a{n}", n + 1, n) for n in range(5)))
        await mine.keep()
    async with server(second) as one, books(one, table) as mine:
        assert [kind for kind, _ in (await told(mine))[0]] == ["stream"]
        await mine.write(closed("b", 1, 2))
        await mine.keep()
        assert (await told(mine))[0] == []


async def test_it_can_be_asked_while_the_keeper_works(tmp_path, table):
    async with server(tmp_path) as one, books(one, table) as mine, books(one, table, "g2", "f1") as other:
        done = asyncio.Event()

        async def work():
            for start in range(0, 300, 20):
                await mine.write(*(closed(f"r{n}", 1 + n, n) for n in range(start, start + 20)))
                await mine.keep()
            done.set()

        working = asyncio.create_task(work())
        while not done.is_set():
            assert (await told(other))[0] == []
        await working
        assert (await told(other))[1].requests == 300
