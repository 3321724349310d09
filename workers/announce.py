"""Announcements: every 500 ms, and soon after every change, but never more often than every 20 ms."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from shared import subjects, wire
from shared.bus import Bus
from shared.errors import BusError
from shared.settings import WorkerSettings
from workers.core.lifecycle import Lifecycle
from workers.core.slots import SlotTable
from workers.engines.base import Capabilities, EngineSpec, Stats

log = structlog.get_logger("announce")

EVERY_S = 0.5
AT_MOST_EVERY_S = 0.02


class Announcing(Protocol):
    """What of a worker goes into its announcements."""

    settings: WorkerSettings
    wep: str
    life: Lifecycle
    slots: SlotTable[str]
    template: tuple[int, int]


def announcement(
    worker: Announcing, n: int, spec: EngineSpec, capabilities: Capabilities | None, stats: Stats | None
) -> wire.Ann:
    """What the worker says of itself now; before the model is loaded, at least which one it will be."""
    stats = stats or Stats()
    slots = worker.slots
    return wire.Ann(
        wep=worker.wep,
        n=n,
        state=worker.life.state,
        pool=worker.settings.pool,
        versions=(_version(spec, capabilities, worker.template),),
        slots=wire.Slots(total=slots.slots, free=slots.free, prefill=slots.prefill, decode=slots.decode),
        kv=wire.Kv(total=stats.kv_total, free=stats.kv_free),
        speed=wire.Speed(prefill_tps=stats.prefill_tps, itl_ms=stats.itl_ms),
        draft=stats.draft,
        queue=slots.waiting,
        device=(
            wire.Device(kind=capabilities.device, runtime=capabilities.runtime, kernel=capabilities.kernel)
            if capabilities
            else wire.Device()
        ),
        reason=worker.life.reason,
        load_progress=worker.life.progress,
    )


def _version(spec: EngineSpec, loaded: Capabilities | None, template: tuple[int, int]) -> wire.Version:
    if loaded is None:
        return wire.Version(
            model=spec.model,
            version=spec.version,
            digest="",
            context=spec.context,
            max_output=spec.max_output,
            vocab_hash="",
        )
    return wire.Version(
        model=loaded.model,
        version=loaded.version,
        digest=loaded.digest,
        context=loaded.context,
        max_output=loaded.max_output,
        vocab_hash=loaded.vocab_hash,
        features=loaded.features,
        template_tokens=template[0],
        message_tokens=template[1],
    )


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
