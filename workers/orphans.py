"""Tells the usage stream what was made for gateways that are gone: each orphan until the stream has confirmed it."""

import asyncio

import structlog

from shared import subjects, wire
from shared.bus import Bus, Delivery
from shared.errors import BusError

log = structlog.get_logger("orphans")

MOST = 4_096
AGAIN_S = 2.0


class Orphans:
    """Publisher on `usage.w.<wid>`. Bounded: past `MOST` the oldest go unreported, and are closed at the last check."""

    def __init__(self, wid: str, wep: str, bus: Bus) -> None:
        self.dropped = 0
        self._wid = wid
        self._wep = wep
        self._bus = bus
        self._n = 0
        self._waiting: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def open(self) -> None:
        """Listen for confirmations."""
        await self._bus.listen(f"{self._bus.inbox}.u.*", self._on_word)

    async def run(self) -> None:
        """Repeat what was not confirmed, until cancelled."""
        while True:
            await asyncio.sleep(AGAIN_S)
            await self.repeat()

    async def report(self, aid: str, generated: int, acked: int) -> None:
        """A stream lost its gateway with so many tokens generated, of which the gateway had acknowledged some."""
        if len(self._waiting) >= MOST:
            self._waiting.pop(next(iter(self._waiting)))
            self.dropped += 1
            log.error("orphan_dropped", dropped=self.dropped)
        self._n += 1
        orphan = wire.Orphan(n=self._n, wep=self._wep, aid=aid, generated=generated, acked=acked)
        self._waiting[self._n] = wire.encode(orphan)
        await self._publish(self._n)

    async def repeat(self) -> None:
        """Send everything again that the stream has not confirmed."""
        for n in list(self._waiting):
            await self._publish(n)

    async def _publish(self, n: int) -> None:
        if not self._bus.connected or n not in self._waiting:
            return
        try:
            await self._bus.publish(
                subjects.usage_of_worker(self._wid), self._waiting[n], reply=f"{self._bus.inbox}.u.{n}"
            )
        except BusError as error:
            log.warning("orphan_not_sent", error=str(error))

    def _on_word(self, delivery: Delivery) -> None:
        """A confirmation; anything else, and the next round tries again."""
        n = subjects.last(delivery.subject)
        if not delivery.status and n.isdecimal() and b'"error"' not in delivery.data:
            self._waiting.pop(int(n), None)
