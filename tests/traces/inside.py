"""A gateway and workers in one process, on a bus of callbacks: all of their own code, no server, no socket, no clock."""

import asyncio
import contextlib
import time

import msgspec
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.core.keys import fingerprint, new_key
from gateway.http.stream import Answering
from gateway.lifespan import _build
from gateway.services.fleet_feed import FleetFeed
from gateway.services.keyring import Keyring
from gateway.services.ledger import Keeper
from gateway.services.meters import Meters
from gateway.services.own_usage import OwnUsage
from gateway.services.quotas import Allowances
from gateway.store.rows import CredentialRow, Snapshot
from shared import subjects
from shared.bus import Delivery
from shared.settings import Settings, WorkerSettings
from shared.telemetry import Metrics
from shared.tracing import Tracing
from workers.compose import spec_for
from workers.engines.base import Delta
from workers.engines.null import NullEngine
from workers.node import Node

PEPPER = b"p" * 32
KEY = new_key(b"1" * 32)
SECRET = "the-violet-submarine-4711"


class Hub:
    """Delivers in the order of publishing, one message at a time."""

    def __init__(self):
        self.subscriptions = []
        self.passed = []
        self.queue = asyncio.Queue()

    async def run(self):
        while True:
            subject, data, reply, headers = await self.queue.get()
            self.passed.append((subject, headers))
            for pattern, handler in self.subscriptions:
                if matches(pattern, subject):
                    await handler(Delivery(subject, data, reply, 0, headers))


class HubBus:
    """`shared.bus.Bus`, as far as gateway and worker use it."""

    connected = True
    max_payload = 1 << 20

    def __init__(self, hub, name):
        self.hub, self.inbox = hub, subjects.inbox(name, "e")
        self.on_disconnect = self.on_reconnect = None

    async def subscribe(self, subject, handler):
        self.hub.subscriptions.append((subject, handler))

    async def listen(self, subject, handler):
        async def call(delivery):
            handler(delivery)

        await self.subscribe(subject, call)

    async def publish(self, subject, payload, *, reply="", headers=None):
        self.hub.queue.put_nowait((subject, payload, reply, headers))

    async def barrier(self):
        pass


def matches(pattern, subject):
    want, have = pattern.split("."), subject.split(".")
    for index, token in enumerate(want):
        if token == ">":
            return len(have) > index
        if index >= len(have) or token not in ("*", have[index]):
            return False
    return len(want) == len(have)


class Gated(NullEngine):
    """Gives one token, then waits to be cancelled or let go on."""

    def __init__(self):
        super().__init__()
        self.go_on = asyncio.Event()

    async def submit(self, request):
        async for event in super().submit(request):
            yield event
            if isinstance(event, Delta):
                await self.go_on.wait()

    def cancel(self, request_id):
        self.go_on.set()
        return super().cancel(request_id)


class Inside:
    """What a test sees."""

    def __init__(self, exporter, house, hub, nodes):
        self.exporter, self.house, self.hub, self.nodes = exporter, house, hub, nodes

    async def ask(self, *, key=KEY, traceparent=None, leave=None, route="chat", **body):
        """One request; `leave` is an event on which the client goes. Returns status and body."""
        body = {"model": "null", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, **body}
        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {key}".encode())]
        headers += [(b"x-request-id", b"req-1")]
        if traceparent:
            headers.append((b"traceparent", traceparent.encode()))
        asked, sent = asyncio.Event(), []

        async def receive():
            if not asked.is_set():
                asked.set()
                return {"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}
            await (leave or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {"headers": headers, "client": ("127.0.0.1", 1)}
        async with asyncio.timeout(30):
            # A task of its own, as the server gives each request one.
            await asyncio.create_task(Answering(self.house, route)(scope, receive, send))
            await self.quiet()
        return sent[0]["status"] if sent else 0, b"".join(message.get("body", b"") for message in sent)

    async def quiet(self):
        """Until the workers have nothing open any more."""
        while any(node.slots.free < node.slots.slots for node in self.nodes) or len(self.house.streams):
            await asyncio.sleep(0)
        for _ in range(10):  # a slot may be given back before the job's last word
            await asyncio.sleep(0)

    def spans(self):
        """Finished spans, by name; where one name has several, in order."""
        found = {}
        for span in self.exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found


@contextlib.asynccontextmanager
async def inside(*engines, traced=True, sample_ratio=1.0):
    exporter, hub, nodes = InMemorySpanExporter(), Hub(), []

    def tracing(service):
        processor = SimpleSpanProcessor(exporter) if traced else None
        return Tracing(service, service, sample_ratio=sample_ratio, processor=processor)

    settings, metrics = Settings(), Metrics("test")
    keyring = Keyring(PEPPER, time.time)
    keyring.load(Snapshot("s", 1, (CredentialRow(fingerprint(PEPPER, KEY), "k1", "t1", "acme", None),)))
    bus = HubBus(hub, "g1")
    quotas = Allowances(settings.limits, time.monotonic, time.time)
    quotas.restored = True
    own = OwnUsage(None, time.monotonic)  # nobody asks here
    house = _build(settings, "gep", bus, keyring, Meters(metrics), quotas=quotas, own=own, tracing=tracing("gateway"))
    # Neither books nor keys are kept up to date by anybody here; what they would tell is in the scrape all the same.
    house.meters.watch_keys(keyring.watch(None))
    house.meters.watch_usage(house.usage, Keeper("g1", None, None, house.usage, None, time.monotonic))
    feed = FleetFeed(bus, house.fleet, house.streams, house.turnstile.look)
    await house.streams.open()
    await feed.open()
    for number, engine in enumerate(engines, 1):
        worker = WorkerSettings(name=f"w{number}", engine="null")
        nodes.append(Node(worker, spec_for(worker), engine, HubBus(hub, worker.name), tracing=tracing("worker")))
    tasks = [asyncio.create_task(work) for work in (hub.run(), house.streams.run(), *(node.run() for node in nodes))]
    try:
        async with asyncio.timeout(30):
            while len(house.fleet.ready(("null", "1"))) != len(nodes):
                await asyncio.sleep(0)
        yield Inside(exporter, house, hub, nodes)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        metrics.close()
