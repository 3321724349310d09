"""Gateways that hear each other, and two that use one name."""

import pytest
import structlog

from gateway.core.gateways import SILENT_S
from gateway.services.heartbeat import Heartbeat
from gateway.services.peers import introduced
from shared import subjects, wire
from shared.bus import Delivery
from shared.errors import ProtocolError


class Hub:
    """A bus that hands each message to everybody at once, its sender included, as NATS does."""

    connected = True

    def __init__(self):
        self.handlers = []

    async def subscribe(self, _subject, handler):
        self.handlers.append(handler)

    async def publish(self, subject, payload):
        for handler in self.handlers:
            await handler(Delivery(subject, payload, "", 0))


class Street:
    """Gateways on one hub, by one clock."""

    def __init__(self):
        self.now, self.hub = 0.0, Hub()

    async def opens(self, gid, gep, store="store"):
        heart = Heartbeat(gid, gep, store, self.hub, lambda: self.now)
        await heart.open()
        return heart

    async def beat(self, *hearts, times=1):
        for _ in range(times):
            for heart in hearts:
                await heart.beat()
            self.now += 0.5


@pytest.fixture
def street():
    return Street()


@pytest.fixture(autouse=True)
def logs():
    with structlog.testing.capture_logs() as captured:
        yield captured


def said(logs, event):
    return [line for line in logs if line["event"] == event]


async def test_two_processes_of_one_name_are_told_of_once_by_everybody(street, logs):
    one, two, other = await street.opens("g1", "a"), await street.opens("g1", "b"), await street.opens("g2", "c")
    await street.beat(one, two, other, times=20)
    lines = said(logs, "gateway_name_twice")
    assert [(line["gateway"], line["log_level"]) for line in lines] == [("g1", "error")] * 3
    assert "g1" in one.concern()
    assert one.concern() == two.concern()
    assert other.concern() == "", "its own name is good"
    assert len(said(logs, "gateway_heard")) <= 6, "and not with every heartbeat"


async def test_it_is_over_once_the_other_is_gone(street):
    one, two = await street.opens("g1", "a"), await street.opens("g1", "b")
    await street.beat(one, two, times=3)
    assert one.concern()
    last = street.now
    while street.now <= last + SILENT_S:
        await street.beat(one)
    assert one.concern() == ""


async def test_a_restart_is_no_second_process(street, logs):
    old, other = await street.opens("g1", "a"), await street.opens("g2", "c")
    await street.beat(old, other, times=3)
    new = await street.opens("g1", "b")
    await street.beat(new, other, times=3)
    assert said(logs, "gateway_name_twice") == []
    assert (new.concern(), other.concern()) == ("", "")


async def test_gateways_with_two_stores_know_of_each_other_until_one_is_gone(street, logs):
    one, two, other = (
        await street.opens("g1", "a"),
        await street.opens("g2", "b"),
        await street.opens("g3", "c", "mine"),
    )
    await street.beat(one, two)
    assert [heart.two_stores() for heart in (one, two)] == ["", ""]
    await street.beat(one, two, other, times=5)
    assert "g3 and g1 are on one bus with different stores" in one.two_stores()
    assert "g3" in two.two_stores()
    assert other.two_stores().startswith("g1, g2 and g3 ")
    assert len(said(logs, "gateway_with_another_store")) == 4, "each once, and not with every heartbeat"
    last = street.now
    while street.now < last + SILENT_S - 1:
        assert one.two_stores()
        await street.beat(one, two)
    await street.beat(one, two, times=4)
    assert (one.two_stores(), two.two_stores()) == ("", "")
    await street.beat(other)
    assert one.two_stores(), "it is back"


async def test_a_gateway_that_comes_back_with_our_store_is_no_stranger_any_more(street):
    one, wrong = await street.opens("g1", "a"), await street.opens("g2", "b", "another")
    await street.beat(one, wrong)
    assert one.two_stores()
    right = await street.opens("g2", "c")
    await street.beat(one, right)
    assert one.two_stores() == ""


@pytest.mark.parametrize("kind", [wire.Ghb, wire.Ann])
def test_who_cannot_be_understood_is_named(kind):
    name = f"{kind.__name__.lower()}7"

    def delivered(data):
        return Delivery(subjects.ghb(name), data, "", 0)

    message = {
        wire.Ghb: lambda **more: wire.Ghb(gep="e", store_id="s", n=1, **more),
        wire.Ann: lambda **more: wire.Ann(wep="e", n=1, state="ready", slots=wire.Slots(total=1, free=1), **more),
    }[kind]
    decoder = wire.decoder(kind)
    assert introduced(delivered(wire.encode(message())), decoder) == (name, message())
    with pytest.raises(ProtocolError, match=f"{name} speaks protocol 99"):
        introduced(delivered(wire.encode(message(proto=99))), decoder)
    with pytest.raises(ProtocolError, match=name):
        introduced(delivered(b"\xc1 nonsense"), decoder)
