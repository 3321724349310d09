"""Announcements: every 500 ms, and soon after every change, but never more often than every 20 ms."""

import asyncio
from collections.abc import Callable

import structlog

from shared import subjects, wire
from shared.bus import Bus
from shared.errors import BusError

log = structlog.get_logger("announce")

EVERY_S = 0.5
AT_MOST_EVERY_S = 0.02


class Announcer:
    """Publishes what `compose(n)` says; `n` counts announcements of this process."""

    def __init__(self, wid: str, bus: Bus, compose: Callable[[int], wire.Ann]) -> None:
        self._subject = subjects.ann(wid)
        self._bus = bus
        self._compose = compose
        self._changed = asyncio.Event()
        self._n = 0

    def changed(self) -> None:
        """Something that gateways decide by is different now."""
        self._changed.set()

    async def announce(self) -> None:
        """Say it now."""
        self._n += 1
        try:
            await self._bus.publish(self._subject, wire.encode(self._compose(self._n)))
        except BusError as error:
            log.warning("announcement_lost", error=str(error))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.announce()
            await asyncio.sleep(AT_MOST_EVERY_S)
            try:
                async with asyncio.timeout(EVERY_S - AT_MOST_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
