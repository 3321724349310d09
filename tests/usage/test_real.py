"""Records through real NATS into a real store: lost confirmations, outages of either, takeovers, a stream made anew."""

import asyncio

import pytest

from gateway.core.ledger import LOST, Ledger
from gateway.store.rows import Progress
from gateway.up.provision import STREAM, make_streams
from shared import subjects, wire
from shared.errors import BusError, StoreError
from tests.usage.real import Books, books, server, store
from tests.usage.records import check, closed, opened
from workers.orphans import Orphans

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
async def table(tmp_path, store_url):
    async with store(tmp_path, store_url) as one:
        yield one.usage


async def test_what_is_written_becomes_rows_and_stays_so_when_all_is_read_again(tmp_path, table):
    async with server(tmp_path) as one, books(one, table) as mine:
        await mine.write(*(opened(f"r{n}") for n in range(300)), *(closed(f"r{n}", 2, n) for n in range(299)))
        await mine.keep()
        rows = await mine.rows()
        assert {rid: row.charged for rid, row in rows.items()} == {f"r{n}": n for n in range(299)}
        assert await table.progress() == Progress(599, (await mine.reader.read(599, 1))[0].at_ns, 300)
        await table.record([], Progress())
        again = await Books(mine.bus, table).open()
        await again.keep()
        assert await again.rows() == rows
        assert list(again.keeper.ledger.unclosed(lambda *_: True, 10)) == ["r299"]


async def test_confirmations_that_are_lost_make_repetitions_and_no_second_row(tmp_path, table, monkeypatch):
    async with server(tmp_path) as one, books(one, table) as mine:
        monkeypatch.setattr(mine.writer.backlog, "confirmed", lambda _n: None)
        for n in range(20):
            mine.writer._queue("open", f"r{n}", opened(f"r{n}"))
            mine.writer._queue("close", f"r{n}", closed(f"r{n}", 2, 10))
        await mine.writer.send()
        for _ in range(2):
            mine.now += 2.1
            await mine.writer.look(mine.now)
        await mine.bus.barrier()
        await mine.keep()
        assert (mine.keeper.position, mine.keeper.ledger.repeated) == (120, 80)
        rows = await mine.rows()
        assert len(rows) == 20
        assert mine.keeper.written == 20

        # The control: without deduplication every one of them is billed three times.
        counted = Ledger(deduplicate=False)
        found = [counted.apply(entry.entry) for entry in await mine.reader.read(1)]
        assert sum(one is not None for one in found) == 60


async def test_while_the_database_is_away_usage_waits_in_the_stream(tmp_path, table, monkeypatch):
    async with server(tmp_path) as one, books(one, table) as mine:
        await mine.write(opened("a"), closed("a", 2, 1))
        await mine.keep()
        working = table.record

        async def away(*_, **__):
            raise StoreError("the disk is gone")

        monkeypatch.setattr(table, "record", away)
        await mine.write(opened("b"), closed("b", 2, 2))
        for _ in range(3):
            with pytest.raises(StoreError):
                await mine.keep()
        await mine.write(opened("c"), closed("c", 2, 3))
        monkeypatch.setattr(table, "record", working)
        await mine.keep()
        assert {rid: row.charged for rid, row in (await mine.rows()).items()} == {"a": 1, "b": 2, "c": 3}


async def test_while_nats_is_away_records_wait_at_their_author(tmp_path, table):
    async with server(tmp_path) as one, books(one, table) as mine:
        await mine.write(opened("a"))
        await one.stop()
        async with asyncio.timeout(20):
            while mine.bus.connected:
                await asyncio.sleep(0.02)
        mine.writer._queue("close", "a", closed("a", 2, 5))
        await mine.writer.send()
        assert len(mine.writer.backlog) == 1
        await one.start()
        async with asyncio.timeout(20):
            while not mine.bus.connected:
                await asyncio.sleep(0.02)
        await mine.confirmed()
        await mine.keep()
        assert (await mine.rows())["a"].charged == 5


async def test_a_stream_that_is_missing_holds_nobody_up_and_gets_everything_once_it_is_there(tmp_path, table):
    async with server(tmp_path, streams=False) as one, books(one, table) as mine:
        for record in (opened("a"), closed("a", 2, 5)):
            mine.writer._queue(type(record).__name__.lower(), "a", record)
        await mine.writer.send()
        async with asyncio.timeout(10):
            while not mine.writer.backlog.blocked:
                await asyncio.sleep(0.01)
        with pytest.raises(BusError, match="no such stream"):
            await mine.keep()
        await make_streams(one.settings)
        await make_streams(one.settings)
        await mine.confirmed()
        await mine.keep()
        assert (await mine.rows())["a"].charged == 5


async def test_a_stream_made_anew_is_noticed_and_read_from_its_start(tmp_path, table):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with server(first) as one, books(one, table) as mine:
        await mine.write(*(opened(f"a{n}") for n in range(3)), *(closed(f"a{n}", 2, 1) for n in range(3)))
        await mine.keep()
    async with server(second) as one, books(one, table) as mine:
        await mine.write(opened("b"), closed("b", 2, 2))
        await mine.keep()
        assert set(await mine.rows()) == {"a0", "a1", "a2", "b"}
        assert (await table.progress()).applied == 2


async def test_one_gateway_keeps_the_table_and_another_goes_on_where_it_was(tmp_path, table):
    async with server(tmp_path) as one, books(one, table) as mine, books(one, table, "g2", "f1") as other:
        await mine.keep()
        await mine.write(opened("a"), check("a", 2, 64))
        await mine.keep()
        await other.keep()
        assert (mine.keeper.holding, other.keeper.holding) == (True, False)
        await mine.keeper.close()
        await other.keep()
        assert other.keeper.holding
        await mine.write(closed("a", 3, 70))
        await other.keep()
        assert (await other.rows())["a"].charged == 70


async def test_a_gateway_that_died_has_its_requests_closed_once_by_the_rule(tmp_path, table):
    async with server(tmp_path) as one:
        async with books(one, table, "g2", "dead") as dead:
            await dead.write(opened("x", gep="dead"), check("x", 2, 64), opened("y", gep="dead", wid="w1"), opened("z"))
        worker = await one.bus("worker", "w1")
        orphans = Orphans("w1", "wep", worker)
        await orphans.open()
        await orphans.report("y.0.0", 40, 33)
        await worker.barrier()
        async with books(one, table) as mine:
            await mine.keep()
            mine.now += 14.9
            await mine.keep()
            assert await mine.rows() == {}, "its silence may yet end"
            mine.now += 1.2
            await mine.keep()
            await mine.confirmed()
            await mine.keep()
            rows = await mine.rows()
            assert {rid: (row.charged, row.outcome) for rid, row in rows.items()} == {
                "x": (64, LOST), "y": (33, LOST), "z": (0, LOST),
            }  # fmt: skip
            async with books(one, table, "g2", "dead") as late:
                await late.write(closed("x", 3, 99))
            mine.now += 30
            await mine.keep()
            assert await mine.rows() == rows, "the first close in the stream counts"
            assert mine.keeper.reconciled == 3
        await worker.close()


async def test_without_the_reconciler_a_dead_gateways_requests_stay_open(tmp_path, table):
    """The control of the test above."""
    async with server(tmp_path) as one:
        async with books(one, table, "g2", "dead") as dead:
            await dead.write(opened("x"), check("x", 2, 64))
        async with books(one, table, reconciling=False) as mine:
            await mine.keep()
            mine.now += 100.0
            await mine.keep()
            assert await mine.rows() == {}
            assert len(mine.keeper.ledger) == 1


async def test_an_open_that_is_repeated_after_its_close_was_forgotten_is_not_billed_again(tmp_path, table):
    async with server(tmp_path) as one, books(one, table, "g2", "dead") as dead:
        await dead.write(opened("x"), closed("x", 2, 70))
        async with books(one, table) as mine:
            await mine.keep()
            await dead.write(opened("x"))
            fresh = await Books(mine.bus, table).open()  # a reader that knows no closed requests
            await fresh.keep()
            assert len(fresh.keeper.ledger) == 1
            fresh.now += 100.0
            await fresh.keep()
            assert len(fresh.keeper.ledger) == 0
            assert fresh.keeper.reconciled == 0
            assert (await mine.rows())["x"].charged == 70


async def test_nonsense_in_the_stream_is_stepped_over(tmp_path, table):
    async with server(tmp_path) as one, books(one, table) as mine:
        await mine.bus.publish(subjects.usage_of_gateway("g1"), b"\xc1 nonsense")
        await mine.write(opened("a"), closed("a", 2, 1))
        await mine.keep()
        assert set(await mine.rows()) == {"a"}
        assert mine.reader.undecodable


async def test_a_record_cannot_be_replayed_as_somebody_elses_message(tmp_path):
    """Who may read the stream says where the answer goes: there, what JetStream repeats is refused."""
    async with server(tmp_path) as one:
        thief, worker = await one.bus("gateway", "g2"), await one.bus("worker", "w1")
        heard = []

        async def on_cancel(delivery):
            heard.append(delivery.data)

        await worker.subscribe(subjects.cancel("w1", "*"), on_cancel)
        await worker.barrier()
        forged = wire.encode(wire.Cancel(gep="of-g1", sid=7, reason="because"))
        await thief.publish(subjects.usage_of_gateway("g2"), forged)
        await thief.barrier()
        await thief.publish(subjects.USAGE_READ, b'{"seq":1}', reply=subjects.cancel("w1", "g1"))
        await thief.barrier()
        await worker.barrier()
        async with asyncio.timeout(10):
            while not worker.handler_errors:
                await asyncio.sleep(0.01)
        assert heard == []
        await thief.publish(subjects.cancel("w1", "g2"), b"mine")
        async with asyncio.timeout(10):
            while not heard:
                await asyncio.sleep(0.01)
        await thief.close()
        await worker.close()


async def test_the_stream_is_on_disk_and_nobody_can_erase_a_record():
    assert (STREAM["storage"], STREAM["deny_delete"], STREAM["deny_purge"], STREAM["max_age"]) == (
        "file",
        True,
        True,
        0,
    )
    assert not {"mirror", "sources", "republish", "allow_rollup_hdrs", "allow_msg_ttl"} & set(STREAM)
