"""Two gateways' keys on real NATS and one real store. They look at the store by themselves only once an hour."""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from gateway.core.freshness import CUT_OFF_S, Freshness
from gateway.services.heartbeat import Heartbeat
from gateway.services.hints import Hints
from gateway.services.keyring import Keyring
from gateway.store.rows import Actor
from shared import subjects, wire
from shared.errors import AuthenticationError, StoreError
from tests.usage import real

BY = Actor("local", name="test")
WITHIN_S = 20.0


class Flaky:
    """A store that can be made to fail."""

    def __init__(self, store):
        self._store, self.failing = store, False

    def __getattr__(self, name):
        if self.failing:
            raise StoreError("gone")
        return getattr(self._store, name)


class Gateway:
    """What of a gateway knows of keys."""

    def __init__(self, gid, bus, store):
        self.bus, self.store, self.source = bus, store, Flaky(store)
        self.clock = asyncio.get_running_loop().time
        self.keyring, self.freshness = Keyring(store.pepper, time.time), Freshness()
        self.watch = self.keyring.watch(self.source, every_s=3600, freshness=self.freshness)
        heard = (bus, self.keyring, self.freshness)
        self.hints = Hints(gid, f"e-{gid}", *heard, look=self.watch.look_now, clock=self.clock)
        self.heart = Heartbeat(gid, f"e-{gid}", store.store_id, bus, time.monotonic)
        store.on_change(self.hints.changed)
        bus.on_reconnect = self.hints.reconnected

    def answer(self, key):
        """What a request with this key would be told now."""
        if fault := self.freshness.fault(self.clock()):
            return fault
        try:
            return self.keyring.check(key).key_id
        except AuthenticationError:
            return "refused"

    async def answers(self, key, expected):
        """Wait until it is told that; returns all it was told before, without repetitions."""
        seen = []
        async with asyncio.timeout(WITHIN_S):
            while (now := self.answer(key)) != expected:
                if seen[-1:] != [now]:
                    seen.append(now)
                await asyncio.sleep(0.002)
        return seen


@contextlib.asynccontextmanager
async def gateway(gid, server, directory):
    async with real.store(directory) as store:
        bus = await server.bus("gateway", gid)
        one = Gateway(gid, bus, store)
        await one.hints.open()
        await bus.barrier()
        async with one.watch, asyncio.TaskGroup() as group:
            tasks = [group.create_task(one.hints.run()), group.create_task(one.heart.run())]
            await one.answers("x", "refused")
            while one.keyring.revision is None:
                await asyncio.sleep(0.002)
            yield one
            for task in tasks:
                task.cancel()
        await bus.close()


@pytest.fixture
async def server(tmp_path):
    async with real.server(tmp_path, streams=False) as one:
        yield one


@pytest.fixture
async def pair(server, tmp_path):
    async with gateway("g1", server, tmp_path) as one, gateway("g2", server, tmp_path) as two:
        yield one, two


@pytest.fixture
async def made(pair):
    """A key that both gateways take."""
    one, _ = pair
    await one.store.tenants.create("acme", by=BY)
    row, secret = await one.store.keys.create("acme", "k", by=BY)
    for each in pair:
        await each.answers(secret, row.id)
    return row.id, secret


async def test_a_change_made_by_one_gateway_holds_on_all_by_word_of_mouth(pair, made):
    one, two = pair
    key_id, secret = made
    await one.store.keys.revoke(key_id, by=BY)
    for each in pair:
        assert set(await each.answers(secret, "refused")) <= {key_id}
    row, other = await two.store.keys.create("acme", "l", by=BY)
    for each in pair:
        assert set(await each.answers(other, row.id)) <= {"refused"}


async def test_a_store_that_is_down_is_no_reason_until_a_change_is_heard_of(pair, made):
    one, two = pair
    key_id, secret = made
    two.source.failing = True
    two.watch.look_now()
    await asyncio.sleep(0)
    assert await two.watch.poll() is False
    assert two.answer(secret) == key_id
    await one.store.keys.revoke(key_id, by=BY)
    assert set(await two.answers(secret, "keys_stale")) <= {key_id}
    for _ in range(3):
        assert await two.watch.poll() is False
        assert two.answer(secret) == "keys_stale"
    two.source.failing = False
    two.watch.look_now()
    assert await two.answers(secret, "refused") in ([], ["keys_stale"])


async def test_a_hint_of_what_nobody_has_done_ends_in_one_look(pair, made):
    one, two = pair
    key_id, secret = made
    await one.bus.publish(subjects.cfg(), wire.encode(wire.Changed(revision=10**12)))
    async with asyncio.timeout(WITHIN_S):
        while not two.freshness.owed:
            await asyncio.sleep(0)
        while two.freshness.owed:
            await asyncio.sleep(0.002)
    assert two.answer(secret) == key_id


async def test_while_the_bus_is_away_changes_are_missed_and_after_it_nothing_stale_is_let_in(pair, made, server):
    _, two = pair
    key_id, secret = made
    await server.stop()
    async with asyncio.timeout(WITHIN_S):
        while two.bus.connected:
            await asyncio.sleep(0.01)
    async with real.store(server.directory) as elsewhere:  # another process, which tells nobody
        await elsewhere.keys.revoke(key_id, by=BY)
    await server.start()
    seen = await two.answers(secret, "refused")
    assert seen in ([key_id, "keys_stale"], [key_id, "cut_off", "keys_stale"], [key_id], [key_id, "cut_off"])


async def test_who_hears_nothing_over_the_bus_lets_nobody_in_and_reads_before_it_does_again(pair, made, server):
    """The server is frozen: the connection stands, as it does when a network swallows everything."""
    _, two = pair
    key_id, secret = made
    began = time.monotonic()
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        assert await two.answers(secret, "cut_off") == [key_id]
        assert time.monotonic() - began >= CUT_OFF_S - 1  # the last heartbeat came before
        async with real.store(server.directory) as elsewhere:
            await elsewhere.keys.revoke(key_id, by=BY)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert key_id not in await two.answers(secret, "refused")
