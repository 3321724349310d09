"""Real NATS with the identities of `evenflow up`, a real store, and gateways of which only the books are there."""

import asyncio
import contextlib
import subprocess
import time

import msgspec

from gateway.core.gateways import Gateways
from gateway.services.ledger import Keeper
from gateway.services.usage_reader import UsageReader
from gateway.services.usage_writer import UsageWriter
from gateway.store.store import Store
from gateway.up import nats_server
from gateway.up.provision import make_streams
from shared.bus import Bus
from shared.identity import find_identity
from shared.settings import NatsSettings, Settings, StoreSettings

WANTED = [("gateway", "g1"), ("gateway", "g2"), ("worker", "w1")]


class Server:
    """A NATS server that can be stopped and started again, with its streams."""

    def __init__(self, directory):
        self.directory = directory
        self.prepared = nats_server.prepare(NatsSettings(directory=str(directory / "nats")), WANTED, print)
        self.process = None

    @property
    def settings(self):
        return NatsSettings(url=self.prepared.url, identities=str(self.prepared.identities))

    async def start(self):
        with (self.directory / "nats.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.prepared.binary, "-c", "server.conf"], cwd=self.prepared.directory, stderr=log
            )
        await nats_server.wait_until_ready(self.prepared, 20)

    async def stop(self):
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, 20)

    async def bus(self, kind, name, epoch="e1"):
        bus = Bus(name, epoch)
        await bus.connect(self.prepared.url, identity=find_identity(str(self.prepared.identities), kind, name))
        return bus


@contextlib.asynccontextmanager
async def server(directory, *, streams=True):
    one = Server(directory)
    await one.start()
    try:
        if streams:
            await make_streams(one.settings)
        yield one
    finally:
        await one.stop()


@contextlib.asynccontextmanager
async def store(directory, url=""):
    """At `url`, or else in a file of the directory."""
    url = url or f"sqlite+aiosqlite:///{directory}/store.db"
    files = StoreSettings(url=url, pepper_file=str(directory / "pepper"))
    opened = await Store.open(msgspec.structs.replace(Settings(), store=files))
    try:
        yield opened
    finally:
        await opened.close()


class Books:
    """The books of one gateway: an author, a reader and a keeper on one connection."""

    def __init__(self, bus, table, gid="g1", gep="e1", **options):
        self.now = time.monotonic()
        self.bus, self.table = bus, table
        self.writer = UsageWriter(gid, gep, bus, lambda: self.now)
        self.reader = UsageReader(bus)
        self.gateways = Gateways(self.now, gid, gep)
        self.keeper = Keeper(gid, table, self.reader, self.writer, self.gateways, lambda: self.now, **options)
        bus.on_reconnect = self.writer.reconnected

    async def open(self):
        await self.writer.open()
        await self.reader.open()
        await self.bus.barrier()
        return self

    async def write(self, *records):
        """Say these, as the author would, and wait until the stream has them."""
        for record in records:
            kind = type(record).__name__.lower()
            self.writer._queue(kind, record.aid.partition(".")[0], record)
        await self.confirmed()

    async def confirmed(self):
        await self.writer.send()
        async with asyncio.timeout(20):
            while self.writer.backlog:
                await asyncio.sleep(0.01)
                self.now += 0.05
                await self.writer.look(self.now)

    async def keep(self):
        """Turns until nothing is left to be read."""
        while await self.keeper.turn():
            pass

    async def rows(self):
        return {row.id: row for row in await self.table.rows(most=10_000)}


@contextlib.asynccontextmanager
async def books(one, table, gid="g1", gep="e1", **options):
    bus = await one.bus("gateway", gid, gep)
    try:
        yield await Books(bus, table, gid, gep, **options).open()
    finally:
        await bus.close()
