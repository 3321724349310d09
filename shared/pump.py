"""Drives one end of the stream protocol: calls it when something is due and carries out what it says, in order.

The protocol is sans-IO; this is the smallest shell around it. Whoever feeds an event calls `poke()`; everything that
happened in one turn of the loop is then flushed together, which is what makes frames.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import structlog

log = structlog.get_logger("pump")

I_co = TypeVar("I_co", covariant=True)
T = TypeVar("T")

_LAG_S = 0.2
_SHORTEST_S = 0.001  # shorter sleeps spin under uvloop


class Machine(Protocol[I_co]):
    """What both ends of the protocol share."""

    def tick(self, now: float) -> None:
        """Do what is due."""
        ...

    def next_wake(self) -> float | None:
        """When the next tick is due."""
        ...

    def lagged(self, now: float) -> None:
        """The loop was late: timers about peers start again."""
        ...

    def instructions(self) -> Sequence[I_co]:
        """What to do now, taken away."""
        ...


class Pump(Generic[T]):
    """One task that ticks a machine and carries out its instructions."""

    def __init__(
        self,
        machine: Machine[T],
        carry_out: Callable[[T], Awaitable[None]],
        *,
        flush: Callable[[float], None] | None = None,
        flush_at: Callable[[], float | None] | None = None,
    ) -> None:
        self._machine = machine
        self._carry_out = carry_out
        self._flush = flush
        self._flush_at = flush_at
        self._event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._planned = float("inf")

    def poke(self) -> None:
        """Something was fed: look again on the next turn of the loop."""
        self._event.set()

    def look(self) -> None:
        """Something was fed that may be due earlier than planned; costs less than a poke when it is not."""
        due = self._machine.next_wake()
        if due is not None and due < self._planned:
            self._event.set()

    async def run(self) -> None:
        """Until cancelled. An instruction that fails is logged; the protocol's own timers make up for it."""
        loop = asyncio.get_running_loop()
        while True:
            self._arm(loop)
            await self._event.wait()
            self._event.clear()
            now = loop.time()
            if now - self._planned > _LAG_S:
                self._machine.lagged(now)
            self._machine.tick(now)
            if self._flush is not None:
                self._flush(now)
            for instruction in self._machine.instructions():
                try:
                    await self._carry_out(instruction)
                except Exception:
                    log.exception("instruction_failed", kind=type(instruction).__name__)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = self._machine.next_wake()
        flush_due = self._flush_at() if self._flush_at is not None else None
        if flush_due is not None and (due is None or flush_due < due):
            due = flush_due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is None:
            self._planned = float("inf")
            return
        due = max(due, loop.time() + _SHORTEST_S)
        self._planned = due
        self._timer = loop.call_at(due, self._event.set)
