"""What gateways tell each other of changes, and what they make of silence, by a clock that the test moves."""

import asyncio

import pytest
import structlog

from gateway.core.freshness import CUT_OFF_S, Freshness
from gateway.services.hints import Hints
from gateway.services.keyring import Keyring
from gateway.store.rows import Snapshot
from shared import subjects, wire
from shared.bus import Delivery
from shared.errors import BusError


class Hub:
    """A bus that hands each message to everybody who listens there, its sender included, as NATS does."""

    def __init__(self):
        self.handlers, self.connected, self.sent, self.error = [], True, [], None

    async def subscribe(self, subject, handler):
        self.handlers.append((subject, handler))

    async def publish(self, subject, payload):
        if self.error is not None:
            raise self.error
        self.sent.append(subject)
        for heard, handler in self.handlers:
            if heard == subject:
                await handler(Delivery(subject, payload, "", 0))


class Gateway:
    def __init__(self, gid, hub, clock):
        self.gid, self.hub = gid, hub
        self.keyring, self.freshness, self.looks = Keyring(b"p" * 32, clock), Freshness(), 0
        self.keyring.load(Snapshot("s", 5, ()))
        self.hints = Hints(gid, f"e-{gid}", hub, self.keyring, self.freshness, look=self.look, clock=clock)

    def look(self):
        self.looks += 1

    async def beat(self, gep=None):
        beat = wire.Ghb(gep=gep or f"e-{self.gid}", store_id="s", n=1)
        await self.hub.publish(subjects.ghb(self.gid), wire.encode(beat))


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hub():
    return Hub()


@pytest.fixture
async def pair(hub, clock):
    both = [Gateway(gid, hub, clock) for gid in ("g1", "g2")]
    for one in both:
        await one.hints.open()
    return both


async def test_a_change_is_told_once_and_everybody_looks(pair, hub):
    one, other = pair
    one.hints.changed(6)
    assert (one.looks, other.looks) == (1, 0)
    await one.hints._tell()
    assert other.looks == 1
    assert other.freshness.owed
    await one.hints._tell()
    assert hub.sent == [subjects.cfg()]


async def test_what_is_known_already_is_nothing_new(pair, hub):
    _, other = pair
    await hub.publish(subjects.cfg(), wire.encode(wire.Changed(revision=5)))
    assert (other.looks, other.freshness.owed) == (0, False)


async def test_several_changes_are_one_hint_with_the_newest(pair, hub):
    one, other = pair
    for revision in (6, 8, 7):
        one.hints.changed(revision)
    heard = []
    hub.handlers.append((subjects.cfg(), lambda delivery: _later(heard.append(delivery.data))))
    await one.hints._tell()
    assert heard == [wire.encode(wire.Changed(revision=8))]
    assert other.looks == 1


async def _later(_):
    await asyncio.sleep(0)


async def test_what_could_not_be_told_is_told_later(pair, hub):
    one, other = pair
    one.hints.changed(6)
    hub.connected = False
    await one.hints._tell()
    hub.connected, hub.error = True, BusError("full")
    with structlog.testing.capture_logs() as logs:
        await one.hints._tell()
    assert [entry["event"] for entry in logs] == ["hint_not_sent"]
    assert other.looks == 0
    hub.error = None
    await one.hints._tell()
    assert other.looks == 1


async def test_the_task_tells_what_changed(pair, hub):
    one, other = pair
    task = asyncio.create_task(one.hints.run())
    one.hints.changed(6)
    async with asyncio.timeout(20):
        while not other.looks:
            await asyncio.sleep(0.001)
    task.cancel()


async def test_its_own_heartbeats_show_that_the_bus_is_there(pair, clock):
    one, _ = pair
    for _ in range(10):
        clock.now += 0.5
        await one.beat()
        assert one.freshness.fault(clock.now) is None
    clock.now += CUT_OFF_S + 0.1
    assert one.freshness.fault(clock.now) == "cut_off"
    assert "cut off from NATS for 3 s" in one.hints.concern()
    await one.beat()
    assert one.freshness.fault(clock.now) == "keys_stale"
    assert "keys may have changed" in one.hints.concern()
    assert one.looks == 1
    one.freshness.read(clock.now, 5)
    assert (one.freshness.fault(clock.now), one.hints.concern()) == (None, "")


@pytest.mark.parametrize("whose", ["another gateway's", "another process's of this name"])
async def test_nobody_elses_heartbeats_do(pair, clock, whose):
    one, other = pair
    clock.now += CUT_OFF_S + 0.1
    await (other.beat() if whose == "another gateway's" else one.beat(gep="another"))
    assert one.freshness.cut_off(clock.now)


async def test_after_a_reconnect_the_store_is_read_before_anybody_is_let_in(pair, clock):
    one, _ = pair
    one.hints.reconnected()
    assert (one.looks, one.freshness.fault(clock.now)) == (1, "keys_stale")
    clock.now += 1
    one.freshness.read(clock.now, 5)
    assert one.freshness.fault(clock.now) is None


async def test_when_the_gateway_itself_stood_still_the_bus_was_not_silent(pair, hub, clock):
    one, _ = pair
    task = asyncio.create_task(one.hints.run())
    await asyncio.sleep(0)
    clock.now += 10
    assert one.freshness.cut_off(clock.now)
    one.hints.changed(6)  # the task has a turn
    async with asyncio.timeout(20):
        while not hub.sent:
            await asyncio.sleep(0)
    task.cancel()
    assert not one.freshness.cut_off(clock.now)
