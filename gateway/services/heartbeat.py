"""Says twice a second that this gateway lives, and listens to the others."""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from gateway.core.gateways import Gateways
from shared import subjects, wire
from shared.bus import Bus, Delivery
from shared.errors import BusError, ProtocolError

log = structlog.get_logger("heartbeat")

EVERY_S = 0.5


class Heartbeat:
    """Publisher on `ghb.<gid>` and subscriber to `ghb.*`."""

    def __init__(self, gid: str, gep: str, store_id: str, bus: Bus, clock: Callable[[], float]) -> None:
        self.gateways = Gateways(clock(), gid, gep)
        self._gid = gid
        self._gep = gep
        self._store_id = store_id
        self._bus = bus
        self._clock = clock
        self._n = 0

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
        gid = subjects.last(delivery.subject)
        try:
            beat: wire.Ghb = _GHB.decode(delivery.data)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"heartbeat of {gid}: {error}") from error
        if beat.proto != wire.PROTO:
            raise ProtocolError(f"{gid} speaks protocol {beat.proto}, this gateway {wire.PROTO}")
        if self.gateways.heard(self._clock(), gid, beat.gep):
            log.info("gateway_heard", gateway=gid, epoch=beat.gep, same_store=beat.store_id == self._store_id)


_GHB = wire.decoder(wire.Ghb)
