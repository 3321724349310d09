"""Says twice a second that this gateway lives, and listens to the others."""

import asyncio
from collections.abc import Callable

import structlog

from gateway.core.gateways import Gateways, Stores
from gateway.services.peers import introduced
from shared import subjects, wire
from shared.bus import Bus, Delivery
from shared.errors import BusError

log = structlog.get_logger("heartbeat")

EVERY_S = 0.5


class Heartbeat:
    """Publisher on `ghb.<gid>` and subscriber to `ghb.*`."""

    def __init__(self, gid: str, gep: str, store_id: str, bus: Bus, clock: Callable[[], float]) -> None:
        self.gateways = Gateways(clock(), gid, gep)
        self.stores = Stores(store_id)
        self._gid = gid
        self._gep = gep
        self._store_id = store_id
        self._bus = bus
        self._clock = clock
        self._n = 0

    def concern(self) -> str:
        """What an operator should know; empty while all is well."""
        # A worker that hears the other one's heartbeat gives up all that it does for this one.
        twice = self.gateways.doubled(self._clock(), self._gid)
        return f"two gateways use the name {self._gid}: they end each other's streams" if twice else ""

    def two_stores(self) -> str:
        """Who on this bus keeps another store, and so knows other keys, limits and usage; empty if nobody does.

        Nobody on the bus can tell which of them is right: none of them takes requests until one is gone.
        """
        strangers = self.stores.strangers(self._clock())
        if not strangers:
            return ""
        return f"{', '.join(strangers)} and {self._gid} are on one bus with different stores: give them one store.url"

    async def open(self) -> None:
        """Listen."""
        await self._bus.subscribe(subjects.ghb("*"), self._on_heartbeat)

    async def run(self) -> None:
        """Beat until cancelled. After a silence of our own nobody else's counts."""
        while True:
            before = self._clock()
            await self.beat()
            await asyncio.sleep(EVERY_S)
            now = self._clock()
            if now - before > 2 * EVERY_S or not self._bus.connected:
                self.gateways.heard_again(now)

    async def beat(self) -> None:
        """One heartbeat; none while the bus is away."""
        if not self._bus.connected:
            return
        self._n += 1
        beat = wire.Ghb(gep=self._gep, store_id=self._store_id, n=self._n)
        try:
            await self._bus.publish(subjects.ghb(self._gid), wire.encode(beat))
        except BusError as error:
            log.warning("heartbeat_not_sent", error=str(error))

    async def _on_heartbeat(self, delivery: Delivery) -> None:
        gid, beat = introduced(delivery, _GHB)
        now = self._clock()
        known = self.gateways.doubled(now, gid)
        new = self.gateways.heard(now, gid, beat.gep)
        if self.gateways.doubled(now, gid) and not known:
            log.error("gateway_name_twice", gateway=gid, help="give each gateway a name of its own")
        elif new:
            log.info("gateway_heard", gateway=gid, epoch=beat.gep, same_store=beat.store_id == self._store_id)
        if beat.gep != self._gep and self.stores.heard(now, gid, beat.store_id):
            log.error("gateway_with_another_store", gateway=gid, help="give all gateways of one bus one store.url")


_GHB = wire.decoder(wire.Ghb)
