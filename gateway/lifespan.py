"""Opens what requests need, in order, and closes it in the reverse; owns every background task of the gateway."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from gateway.context import House
from gateway.core.concurrency import Concurrency
from gateway.core.fleet import Fleet
from gateway.services.fleet_feed import FleetFeed
from gateway.services.keyring import Keyring
from gateway.services.meters import Meters
from gateway.services.streams import Streams
from gateway.services.turnstile import Turnstile
from gateway.store.store import Store
from shared.bus import Bus
from shared.identity import find_identity
from shared.settings import Settings
from shared.telemetry import Metrics
from shared.tracing import Tracing

log = structlog.get_logger("lifespan")


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[House]:
    """The whole house, running. An owner task that dies ends the `async with` with its error."""
    epoch = secrets.token_hex(8)
    metrics = Metrics("evenflow-gateway")
    tracing = Tracing.configured("evenflow-gateway", settings.gateway.name, settings.telemetry)
    store = await Store.open(settings)
    bus = Bus(settings.gateway.name, epoch)
    try:
        keyring = Keyring(store.pepper, time.time)
        keyring.load(await store.snapshot())
        identity = find_identity(settings.nats.identities, "gateway", settings.gateway.name)
        await bus.connect(settings.nats.url, identity=identity, credentials=settings.nats.credentials)
        house = _build(settings, epoch, bus, keyring, Meters(metrics), tracing=tracing)
        feed = FleetFeed(bus, house.fleet, house.streams, house.turnstile.look)
        await house.streams.open()
        await feed.open()
        await bus.barrier()
        async with keyring.watch(store), asyncio.TaskGroup() as group:
            owned = [
                group.create_task(house.streams.run(), name="streams"),
                group.create_task(feed.run(), name="fleet feed"),
            ]
            log.info("gateway_open", gateway=settings.gateway.name, epoch=epoch)
            try:
                yield house
            finally:
                for task in owned:
                    task.cancel()
    finally:
        await bus.close()
        await store.close()
        await tracing.close()
        metrics.close()


def _build(settings: Settings, epoch: str, bus: Bus, keyring: Keyring, meters: Meters, *, tracing: Tracing) -> House:
    fleet = Fleet()
    streams = Streams(settings.gateway.name, epoch, bus, fleet, settings.limits)
    turnstile = Turnstile(fleet, settings.limits)
    streams.freed = turnstile.look
    streams.ended = meters.ended
    concurrency = Concurrency()
    meters.watch(fleet, streams, turnstile, concurrency)
    if tracing.pipe is not None:
        meters.watch_traces(tracing.pipe)
    bus.on_disconnect = streams.disconnected
    bus.on_reconnect = streams.reconnected
    return House(
        settings=settings,
        epoch=epoch,
        created=int(time.time()),
        keyring=keyring,
        fleet=fleet,
        streams=streams,
        turnstile=turnstile,
        concurrency=concurrency,
        meters=meters,
        tracing=tracing,
        draining=asyncio.Event(),
    )
