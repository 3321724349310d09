"""When keys were last used: what is written, when, and what becomes of it if it cannot be."""

import asyncio

import pytest

from gateway.services import last_used
from gateway.services.last_used import LastUsed
from shared.errors import StoreError


class Table:
    def __init__(self):
        self.batches, self.failing = [], False

    async def used(self, last):
        if self.failing:
            raise StoreError("gone")
        self.batches.append(dict(last))


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def clock():
    return Clock()


async def test_a_key_is_written_once_a_minute_however_often_it_is_used(table, clock):
    uses, minutes = LastUsed(clock), asyncio.Queue()
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        await minutes.get()

    task = asyncio.create_task(uses.run(table.used, sleep=sleep))
    for _ in range(3):
        for _ in range(100):
            clock.now += 0.1
            uses.used("k")
        minutes.put_nowait(None)
        while len(slept) == len(table.batches):
            await asyncio.sleep(0)
        while len(uses):
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    assert [batch["k"] for batch in table.batches] == [pytest.approx(n * 10_000 + 1_000_000, abs=2) for n in (1, 2, 3)]
    assert set(slept) == {60.0}


async def test_nothing_used_writes_nothing(table, clock):
    await LastUsed(clock).flush(table.used)
    assert table.batches == []


async def test_many_keys_are_written_in_small_transactions(table, clock, monkeypatch):
    monkeypatch.setattr(last_used, "BATCH", 2)
    uses = LastUsed(clock)
    for number in range(5):
        uses.used(f"k{number}")
    await uses.flush(table.used)
    assert [len(batch) for batch in table.batches] == [2, 2, 1]
    assert len(uses) == 0


async def test_what_cannot_be_written_is_written_later_and_newer_times_win(table, clock, monkeypatch):
    monkeypatch.setattr(last_used, "BATCH", 1)
    uses = LastUsed(clock)
    uses.used("a")
    uses.used("b")
    table.failing = True
    await uses.flush(table.used)
    clock.now += 5
    uses.used("b")
    table.failing = False
    await uses.flush(table.used)
    assert table.batches == [{"a": 1_000_000}, {"b": 1_005_000}]


async def test_what_waits_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(last_used, "MOST", 3)
    uses = LastUsed(clock)
    for number in range(9):
        uses.used(f"k{number}")
    clock.now += 1
    uses.used("k0")
    assert (len(uses), uses._seen["k0"]) == (3, 1_001_000)
