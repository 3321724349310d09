"""A gateway and a worker with all their own code, TLS and permissions, in one process: each reaches NATS through a proxy.

In one process, so that a test can look into both ends of the protocol and switch their safety devices off.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.app import admin_app, tenant_app
from gateway.context import House
from gateway.core.accounts import Limits
from gateway.lifespan import opened
from gateway.serve import _listen, _server
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.bus import Bus
from shared.identity import find_identity
from shared.protocol import Timing
from shared.settings import NatsSettings, Settings, StoreSettings, WorkerSettings
from tests.chaos.lossy_proxy import Proxy, Weather
from tests.e2e.clients import eventually
from tests.usage.real import Server, server
from workers.compose import make_engine, spec_for
from workers.node import Node

BY = Actor("local", name="test")

MOST = 128
"""Streams that the tenant may have open."""


class LossyStack:
    """What `tests.e2e.stack.Stack` is to its clients, and both ends beside it."""

    def __init__(self, directory: Path, key: str, house: House, node: Node, doors: dict[str, Proxy]) -> None:
        self.directory = directory
        self.key = key
        self.house = house
        self.node = node
        self.doors = doors
        self.port = self.admin_port = 0
        self.tails = 0
        """How often the gateway asked again after silence, with no hole to be seen."""
        end = house.streams.end
        ask_again = end._ask_again

        def counted(now, peer):
            before = end.counters.resumes
            ask_again(now, peer)
            self.tails += peer.arrivals.whole and end.counters.resumes > before

        end._ask_again = counted  # type: ignore[method-assign]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def done(self) -> Counter[str]:
        """What the weather did on both sides."""
        return sum((door.done for door in self.doors.values()), Counter())

    def weather(self, weather: Weather | None) -> None:
        """From now on; None for calm."""
        for door in self.doors.values():
            door.weather = weather

    def leftovers(self) -> list[str]:
        """What either end still holds for anybody, in words."""
        gateway, worker, stats = self.house.streams, self.node.end, self.node.engine.stats()
        held = {
            "streams in the gateway": len(gateway),
            "bytes in inboxes": gateway.buffered_bytes,
            "streams in the gateway's end": gateway.end.open_count(),
            "jobs in the worker": len(self.node._runs),
            "streams in the worker's end": worker.open_count(),
            "unacknowledged terminals": worker.unacked_count(),
            "slots": self.node.slots.slots - self.node.slots.free,
            "in the worker's line": self.node.slots.waiting,
            "in the engine": stats.decode + stats.waiting,
        }
        return [f"{count} {what}" for what, count in held.items() if count]


@contextlib.asynccontextmanager
async def lossy(directory: Path, *, timing: Timing | None = None, **worker: object) -> AsyncIterator[LossyStack]:
    """A whole stack, ready. `timing` is for both ends; `worker` changes the null engine's settings."""
    async with server(directory) as nats, contextlib.AsyncExitStack() as open_:
        doors = {}
        for kind, name in (("gateway", "g1"), ("worker", "w1")):
            doors[name] = await _door(nats, kind, name).open()
            open_.push_async_callback(doors[name].close)
        settings = _settings(nats, directory, doors["g1"].url, worker)
        key = await _key(settings)
        house, store = await open_.enter_async_context(opened(settings))
        node = await open_.enter_async_context(_worker(settings, doors["w1"].url))
        if timing is not None:
            house.streams.end.timing = node.end.timing = timing
        stack = LossyStack(directory, key, house, node, doors)
        await open_.enter_async_context(_serving(stack, store, settings))

        async def ready() -> bool:
            return house.quotas.restored and bool(house.fleet.ready(("null", "1")))

        await eventually(ready, "the worker is ready, and the gateway")
        yield stack


def _door(nats: Server, kind: str, name: str) -> Proxy:
    identity = find_identity(str(nats.prepared.identities), kind, name)
    assert identity is not None
    return Proxy(name, identity, nats.prepared.directory, nats.prepared.port)


def _settings(nats: Server, directory: Path, url: str, worker: dict[str, object]) -> Settings:
    home = directory / ".evenflow"
    home.mkdir()
    null = {"null_mode": "hash", "null_paced": True, "null_rate": 200.0, "null_tokens": 1000, "slots": 8} | worker
    return Settings(
        nats=NatsSettings(url=url, identities=str(nats.prepared.identities)),
        store=StoreSettings(url=f"sqlite+aiosqlite:///{home}/evenflow.db", pepper_file=str(home / "pepper")),
        workers=(WorkerSettings(engine="null", **null),),
    )


async def _key(settings: Settings) -> str:
    store = await Store.open(settings)
    try:
        await store.tenants.create("demo", limits=Limits(streams=MOST), by=BY)
        return (await store.keys.create("demo", "test", by=BY))[1]
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _worker(settings: Settings, url: str) -> AsyncIterator[Node]:
    entry = settings.workers[0]
    bus = Bus(entry.name, "e1")
    node = Node(entry, spec_for(entry), make_engine(entry), bus)
    await bus.connect(url, identity=find_identity(settings.nats.identities, "worker", entry.name))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(node.run(), name="worker")
            try:
                yield node
            finally:
                node.stopping.set()
    finally:
        await bus.close()


@contextlib.asynccontextmanager
async def _serving(stack: LossyStack, store: Store, settings: Settings) -> AsyncIterator[None]:
    house = stack.house
    servers = [_server(tenant_app(house), settings), _server(admin_app(house, store), settings)]
    with _listen("127.0.0.1", 0) as tenants, _listen("127.0.0.1", 0) as operators:
        stack.port, stack.admin_port = tenants.getsockname()[1], operators.getsockname()[1]
        async with asyncio.TaskGroup() as group:
            group.create_task(servers[0].serve([tenants]), name="tenants' door")
            group.create_task(servers[1].serve([operators]), name="operators' door")
            try:
                yield
            finally:
                for one in servers:
                    one.should_exit = True
