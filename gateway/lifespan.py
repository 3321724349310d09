"""Opens what requests need, in order, and closes it in the reverse; owns every background task of the gateway."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from gateway.context import House
from gateway.core.fleet import Fleet
from gateway.core.freshness import Freshness
from gateway.core.guessing import Guesses
from gateway.core.networks import canonical, compiled
from gateway.services.audit_watch import AuditWatch
from gateway.services.fleet_feed import FleetFeed
from gateway.services.heartbeat import Heartbeat
from gateway.services.hints import Hints
from gateway.services.keyring import Keyring, KeyringWatch
from gateway.services.last_used import LastUsed
from gateway.services.ledger import Keeper
from gateway.services.meters import Meters
from gateway.services.own_usage import OwnUsage
from gateway.services.pulse import PulseWatch
from gateway.services.quota_journal import QuotaJournal
from gateway.services.quotas import Allowances
from gateway.services.streams import Streams
from gateway.services.turnstile import Turnstile
from gateway.services.usage_reader import UsageReader
from gateway.services.usage_writer import UsageWriter
from gateway.store.store import Store
from shared.bus import Bus
from shared.identity import find_identity
from shared.settings import Settings
from shared.telemetry import Metrics
from shared.tracing import Tracing

log = structlog.get_logger("lifespan")

_LAST_RECORDS_S = 5.0


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[tuple[House, Store]]:
    """The whole house, running, and the store for operators: tenants' requests never see it.

    An owner task that dies ends the `async with` with its error.
    """
    epoch = secrets.token_hex(8)
    metrics = Metrics("evenflow-gateway")
    tracing = Tracing.configured("evenflow-gateway", settings.gateway.name, settings.telemetry)
    store = await Store.open(settings)
    bus = Bus(settings.gateway.name, epoch)
    try:
        keyring = Keyring(store.pepper, time.time)
        keyring.on_load = (quotas := Allowances(settings.limits, time.monotonic, time.time)).load
        keyring.load(await store.snapshot())
        identity = find_identity(settings.nats.identities, "gateway", settings.gateway.name)
        await bus.connect(settings.nats.url, identity=identity, credentials=settings.nats.credentials)
        own = OwnUsage(store.usage, time.monotonic)
        house = _build(settings, epoch, bus, keyring, Meters(metrics), quotas=quotas, own=own, tracing=tracing)
        feed = FleetFeed(bus, house.fleet, house.streams, house.turnstile.look)
        heart = Heartbeat(settings.gateway.name, epoch, store.store_id, bus, time.monotonic)
        reader = UsageReader(bus)
        keeper = Keeper(
            *(settings.gateway.name, store.usage, reader, house.usage, heart.gateways, time.monotonic),
            keep_days=settings.usage.keep_days,
        )
        journal = QuotaJournal(quotas, store.usage, reader, time.time)
        keeper.on_closed = journal.closed
        house.meters.watch_usage(house.usage, keeper)
        watch = keyring.watch(store, freshness=house.freshness)
        house.meters.watch_keys(watch)
        hints = _hints(settings.gateway.name, epoch, bus, house, watch)
        store.on_change(hints.changed)
        house.concerns.extend((watch.concern, hints.concern, heart.concern))
        house.obstacles.append(heart.two_stores)
        for part in (house.streams, house.usage, feed, heart, hints, reader):
            await part.open()
        await bus.barrier()
        async with watch, asyncio.TaskGroup() as group:
            keeping = group.create_task(_keep(journal, keeper), name="ledger")
            owned = [
                group.create_task(house.streams.run(), name="streams"),
                group.create_task(house.usage.run(), name="usage"),
                group.create_task(feed.run(), name="fleet feed"),
                group.create_task(heart.run(), name="heartbeat"),
                group.create_task(house.pulse.run(), name="pulse"),
                group.create_task(hints.run(), name="hints"),
                group.create_task(AuditWatch(store.audit).run(), name="audit"),
                group.create_task(house.last_used.run(store.keys.used), name="last used"),
            ]
            log.info("gateway_open", gateway=settings.gateway.name, epoch=epoch)
            try:
                yield house, store
            finally:
                keeping.cancel()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_RECORDS_S):
                        await house.usage.close()
                        await keeper.close()
                        await house.last_used.flush(store.keys.used)
                for task in owned:
                    task.cancel()
    finally:
        await bus.close()
        await store.close()
        await tracing.close()
        metrics.close()


async def _keep(journal: QuotaJournal, keeper: Keeper) -> None:
    """Learn what was used before; only then read on, so that nothing closes unheard in between."""
    await journal.run()
    await keeper.run()


def _hints(gid: str, epoch: str, bus: Bus, house: House, watch: KeyringWatch) -> Hints:
    clock = asyncio.get_running_loop().time
    hints = Hints(gid, epoch, bus, house.keyring, house.freshness, look=watch.look_now, clock=clock)
    others = bus.on_reconnect

    def reconnected() -> None:
        hints.reconnected()
        others()

    bus.on_reconnect = reconnected
    return hints


def _build(
    settings: Settings,
    epoch: str,
    bus: Bus,
    keyring: Keyring,
    meters: Meters,
    *,
    quotas: Allowances,
    own: OwnUsage,
    tracing: Tracing,
) -> House:
    fleet = Fleet()
    streams = Streams(settings.gateway.name, epoch, bus, fleet, settings.limits)
    turnstile = Turnstile(fleet, settings.limits)
    streams.freed = turnstile.look
    streams.ended = meters.ended
    usage = UsageWriter(settings.gateway.name, epoch, bus, time.monotonic)
    streams.over = usage.over
    usage.settled = quotas.settle
    meters.watch(fleet, streams, turnstile, quotas)
    if tracing.pipe is not None:
        meters.watch_traces(tracing.pipe)
    bus.on_disconnect = streams.disconnected

    def reconnected() -> None:
        streams.reconnected()
        usage.reconnected()

    bus.on_reconnect = reconnected
    return House(
        settings=settings,
        epoch=epoch,
        created=int(time.time()),
        keyring=keyring,
        freshness=Freshness(),
        trusted=compiled(map(canonical, settings.gateway.proxies)),
        guesses=Guesses(settings.limits.bad_keys_per_minute),
        last_used=LastUsed(time.time),
        fleet=fleet,
        streams=streams,
        turnstile=turnstile,
        quotas=quotas,
        meters=meters,
        pulse=PulseWatch(fleet, turnstile.line, asyncio.get_running_loop().time, time.time),
        tracing=tracing,
        usage=usage,
        own_usage=own,
        draining=asyncio.Event(),
    )
