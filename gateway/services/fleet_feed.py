"""Keeps the fleet true: announcements in, silences noticed, everyone told who decides by it."""

import asyncio
from collections.abc import Callable

import structlog

from gateway.core.fleet import Fleet
from gateway.services.peers import introduced
from gateway.services.streams import Streams
from shared import subjects, wire
from shared.bus import Bus, Delivery

log = structlog.get_logger("fleet")

_LOOK_S = 0.25


class FleetFeed:
    """Subscriber to `ann.*`."""

    def __init__(self, bus: Bus, fleet: Fleet, streams: Streams, changed: Callable[[], None]) -> None:
        self._bus = bus
        self._fleet = fleet
        self._streams = streams
        self._changed = changed

    async def open(self) -> None:
        """Listen."""
        await self._bus.subscribe(subjects.ann("*"), self._on_announcement)

    async def run(self) -> None:
        """Notice silent workers, until cancelled."""
        loop = asyncio.get_running_loop()
        planned = loop.time()
        while True:
            planned += _LOOK_S
            await asyncio.sleep(max(0.0, planned - loop.time()))
            now = loop.time()
            if now - planned > _LOOK_S or not self._bus.connected:
                self._fleet.heard_again(now)  # it was us who were away
                planned = now
                continue
            for wid in self._fleet.silent(now):
                log.warning("worker_silent", worker=wid)
                self._streams.worker_gone(wid, "the worker went silent")
                self._changed()

    async def _on_announcement(self, delivery: Delivery) -> None:
        wid, ann = introduced(delivery, _ANN)
        now = asyncio.get_running_loop().time()
        known = self._fleet.workers.get(wid)
        new = known is None or known.ann.wep != ann.wep
        doubled = known is not None and known.doubled
        changed = self._fleet.announced(now, wid, ann)
        if self._fleet.workers[wid].doubled:
            if not doubled:
                log.error("worker_name_twice", worker=wid, help="give each worker a name of its own")
        elif new:
            log.info("worker_announced", worker=wid, state=ann.state)
        self._streams.announced(wid, ann.wep)
        if changed:
            self._changed()


_ANN = wire.decoder(wire.Ann)
