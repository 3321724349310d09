"""Tells the other gateways that the store changed, and hears it from them; knows whether it would hear it.

A hint only says when to look: the row in the store is the truth, and it is looked at twice a second whatever is heard.
That hints would arrive is known from the gateway's own heartbeats, which come back over the bus.
"""

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from gateway.core.freshness import Freshness
from gateway.services.keyring import Keyring
from gateway.services.peers import introduced
from shared import subjects, wire
from shared.bus import Bus, Delivery
from shared.errors import BusError

log = structlog.get_logger("hints")

LOOK_S = 0.25


class Hints:
    """Publisher of and subscriber to `cfg`. `look` asks for a look at the store; `clock` is the event loop's."""

    def __init__(
        self,
        gid: str,
        gep: str,
        bus: Bus,
        keyring: Keyring,
        freshness: Freshness,
        *,
        look: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._gid = gid
        self._gep = gep
        self._bus = bus
        self._keyring = keyring
        self._freshness = freshness
        self._look = look
        self._clock = clock
        self._revision = 0
        self._told = 0
        self._changed = asyncio.Event()
        self._cut_off = False

    def concern(self) -> str:
        """What an operator should know; empty while all is well."""
        now = self._clock()
        match self._freshness.fault(now):
            case "cut_off":
                return f"cut off from NATS for {self._freshness.silent_s(now):.0f} s: no request is let in"
            case "keys_stale":
                return "keys may have changed, and the store does not answer: no key is let in"
            case None:
                return ""

    def changed(self, revision: int) -> None:
        """This process has changed the store: the others hear of it, and it looks itself."""
        self._revision = max(self._revision, revision)
        self._changed.set()
        self._freshness.announced(self._clock(), revision)
        self._look()

    def reconnected(self) -> None:
        """The bus is back: look at the store before anybody is let in."""
        self._freshness.returned(self._clock())
        self._look()

    async def open(self) -> None:
        """Listen."""
        self._freshness.heard(self._clock())
        await self._bus.subscribe(subjects.cfg(), self._on_hint)
        await self._bus.subscribe(subjects.ghb(self._gid), self._on_beat)

    async def run(self) -> None:
        """Tell of changes and watch the bus, until cancelled."""
        while True:
            planned = self._clock() + LOOK_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            self._changed.clear()
            now = self._clock()
            if now - planned > LOOK_S:  # it was us who were away
                self._freshness.lagged(now, now - planned)
            if (cut_off := self._freshness.cut_off(now)) != self._cut_off:
                self._cut_off = cut_off
                log.warning("bus_silent" if cut_off else "bus_heard", silent_s=round(self._freshness.silent_s(now), 1))
            await self._tell()

    async def _tell(self) -> None:
        """Say once more what was not said, or not in vain; while the bus is away the others look by themselves."""
        if self._told >= self._revision or not self._bus.connected:
            return
        revision = self._revision
        try:
            await self._bus.publish(subjects.cfg(), wire.encode(wire.Changed(revision=revision)))
        except BusError as error:
            log.warning("hint_not_sent", revision=revision, error=str(error))
        else:
            self._told = revision

    async def _on_hint(self, delivery: Delivery) -> None:
        revision = _CHANGED.decode(delivery.data).revision
        if self._keyring.revision is None or revision > self._keyring.revision:
            self._freshness.announced(self._clock(), revision)
            self._look()

    async def _on_beat(self, delivery: Delivery) -> None:
        _, beat = introduced(delivery, _GHB)
        if beat.gep != self._gep:
            return
        self._freshness.heard(self._clock())
        if self._freshness.owed:
            self._look()


_CHANGED = wire.decoder(wire.Changed)
_GHB = wire.decoder(wire.Ghb)
