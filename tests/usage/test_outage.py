"""The database goes away and comes back: usage waits in the stream, and all of it is there once in the end."""

import asyncio
import contextlib

import pytest

from gateway.core.daily import folded
from gateway.services import ledger as keeping
from gateway.services.usage_verify import verify
from gateway.store import engine
from gateway.store.usage import place_of
from shared.errors import StoreError
from tests.usage.outage import WRITING, outage
from tests.usage.real import Books, books, server, store
from tests.usage.records import closed, opened

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", 50)
    monkeypatch.setattr(keeping, "TROUBLE_S", 0.05)


@contextlib.asynccontextmanager
async def working(mine):
    """Its keeper runs as in a gateway."""
    task = asyncio.create_task(mine.keeper.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def reach(holds, _what):
    async with asyncio.timeout(30):
        while not await holds():
            await asyncio.sleep(0.02)


async def test_usage_waits_in_the_stream_while_the_database_is_away(tmp_path):
    async with store(tmp_path) as one_store, server(tmp_path) as one, books(one, one_store.usage) as mine:
        table = one_store.usage

        async def has(count):
            return len(await table.rows(most=10_000)) == count

        async def troubled():
            return mine.keeper._troubled

        async with working(mine):
            await mine.write(*(opened(f"a{n}") for n in range(5)), *(closed(f"a{n}", 9, n) for n in range(5)))
            await reach(lambda: has(5), "the first rows")
            with outage(tmp_path / "store.db", WRITING):
                with pytest.raises(StoreError):
                    await table.lease("other", "me", 1)
                for round_ in range(3):
                    ids = [f"b{round_}-{n}" for n in range(20)]
                    # All of it is confirmed: a gateway keeps nothing back, and no request waits.
                    await mine.write(*(opened(rid) for rid in ids), *(closed(rid, 9, 3) for rid in ids))
                    await reach(troubled, "the keeper has noticed")
                assert await has(5)
        # The gateway dies meanwhile: another one goes on.
        again = await Books(mine.bus, table).open()
        async with working(again):
            await again.write(closed("c", 1, 7))
            await reach(lambda: has(66), "everything")
        rows = await table.rows(most=1000)
        assert {row.id for row in rows} == {
            *(f"a{n}" for n in range(5)), *(f"b{r}-{n}" for r in range(3) for n in range(20)), "c"
        }  # fmt: skip
        counted, kept, _ = await table.counted("t1")
        assert counted == kept == folded((place_of(row), row) for row in rows)
        assert (await verify(table, again.reader)).different == 0


async def test_a_transaction_whose_end_was_not_heard_is_not_written_twice(tmp_path, monkeypatch):
    """The database kept it, and the keeper believes that it did not."""
    async with store(tmp_path) as one_store, server(tmp_path) as one, books(one, one_store.usage) as mine:
        table, recording = one_store.usage, one_store.usage.record
        lost = []

        async def unheard(*arguments, **options):
            written = await recording(*arguments, **options)
            if len(lost) < 3:
                lost.append(written)
                raise StoreError("the connection broke")
            return written

        monkeypatch.setattr(table, "record", unheard)
        async with working(mine):
            for n in range(10):
                await mine.write(opened(f"r{n}"), closed(f"r{n}", 2, n))

            async def all_there():
                return len(await table.rows()) == 10 and not mine.keeper._unwritten

            await reach(all_there, "all rows")
        assert sum(lost) > 0
        counted, kept, _ = await table.counted("t1")
        assert counted == kept
        assert sum(sums.requests for sums in kept.values()) == 10
