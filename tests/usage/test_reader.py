"""Answers of the stream are many messages: what of them is lost or doubled on its way is seen."""

import pytest

from gateway.services.usage_reader import UsageReader
from shared import subjects, wire
from shared.errors import BusError
from tests.usage.real import server
from tests.usage.records import opened

RECORDS = 6

pytestmark = pytest.mark.timeout(90)


class Arriving(UsageReader):
    """A reader at the end of a bad line: `copies` says how often each message of the next answers arrives."""

    copies: list[int]

    async def _on_message(self, delivery):
        for _ in range(self.copies.pop(0) if self.copies else 1):
            await super()._on_message(delivery)

    async def numbers(self, copies):
        self.copies = list(copies)
        return [one.sequence for one in await self.read(1)]


@pytest.fixture
async def reader(tmp_path):
    async with server(tmp_path) as one:
        bus = await one.bus("gateway", "g1")
        try:
            for n in range(RECORDS):
                await bus.publish(subjects.usage_of_gateway("g1"), wire.encode(opened(f"r{n}")))
            reader = Arriving(bus)
            await reader.open()
            await bus.barrier()
            yield reader
        finally:
            await bus.close()


async def test_an_answer_with_a_hole_is_no_answer_and_can_be_asked_for_again(reader):
    for lost in range(RECORDS):
        with pytest.raises(BusError, match="lost on its way"):
            await reader.numbers(n != lost for n in range(RECORDS + 1))
        assert await reader.numbers([]) == [1, 2, 3, 4, 5, 6]


async def test_what_comes_twice_is_taken_once(reader):
    assert await reader.numbers([2] * (RECORDS + 1)) == [1, 2, 3, 4, 5, 6]
