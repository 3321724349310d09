"""What a worker had made for a gateway that is gone is told until the stream has it."""

import pytest

from shared import wire
from shared.bus import Delivery
from workers.orphans import MOST, Orphans


class WorkerBus:
    inbox, connected = "_INBOX.w1.e", True

    def __init__(self):
        self.sent = []

    async def listen(self, _subject, handler):
        self.handler = handler

    async def publish(self, subject, payload, *, reply):
        self.sent.append((subject, payload, reply))


@pytest.fixture
async def reporter():
    orphans = Orphans("w1", "wep", WorkerBus())
    await orphans.open()
    return orphans


async def test_reported_at_once_and_the_same_again_until_confirmed(reporter):
    await reporter.report("r.0.0", 30, 25)
    await reporter.repeat()
    bus = reporter._bus
    assert len(bus.sent) == 2
    assert len(set(bus.sent)) == 1
    subject, payload, reply = bus.sent[0]
    assert subject == "ef.usage.w.w1"
    assert wire.decoder(wire.Orphan).decode(payload) == wire.Orphan(n=1, wep="wep", aid="r.0.0", generated=30, acked=25)
    for body, status in ((b"", 503), (b'{"error":{"code":500},"seq":0}', 0)):
        bus.handler(Delivery(reply, body, "", status))
        assert len(reporter) == 1
    bus.handler(Delivery(reply, b'{"stream":"USAGE","seq":4}', "", 0))
    assert len(reporter) == 0
    await reporter.repeat()
    assert len(bus.sent) == 2


async def test_while_the_bus_is_away_they_wait(reporter):
    reporter._bus.connected = False
    await reporter.report("r.0.0", 30, 25)
    assert reporter._bus.sent == []
    reporter._bus.connected = True
    await reporter.repeat()
    assert len(reporter._bus.sent) == 1


async def test_they_are_bounded_and_the_loss_is_counted(reporter):
    for number in range(MOST + 3):
        await reporter.report(f"r{number}.0.0", 1, 1)
    assert len(reporter) == MOST
    assert reporter.dropped == 3
