"""The gateway's pulse: what runs, looked at once a second. What a request costs here is two entries in a dictionary.

Nothing is called per token: every attempt counts what it received anyway, and a look takes the difference.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from gateway.core.charging import OURS
from gateway.core.fleet import Fleet
from gateway.core.line import Line
from gateway.core.pulse import LIMITED, Figures, Pulse, Tally

LOOK_S: Final = 1.0


class Attempted(Protocol):
    """What is needed of a job on a worker."""

    received: int


class Going(Protocol):
    """What is needed of a request on its way."""

    @property
    def attempts(self) -> Sequence[Attempted]:
        """Its jobs so far."""
        ...

    @property
    def first_token_at(self) -> float | None:
        """When its first token went out."""
        ...


class _Running(msgspec.Struct):
    """`counted` tokens are in earlier seconds."""

    tenant: str
    name: str
    arrived: float
    counted: int = 0
    begun: bool = False


class PulseWatch:
    """One per gateway. `clock` in seconds, the one that requests go by; `wall_clock` in seconds since 1970."""

    def __init__(self, fleet: Fleet, line: Line, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self.pulse = Pulse()
        self.looked: asyncio.Event = asyncio.Event()
        """Set, and replaced by another, after each look."""
        self._fleet = fleet
        self._line = line
        self._clock = clock
        self._wall_clock = wall_clock
        self._running: dict[Going, _Running] = {}
        self._tallies: dict[str, Tally] = {}
        self._tokens = 0
        self._failed = 0
        self._limited = 0
        self._looked_at = clock()

    def begun(self, going: Going, tenant: str, name: str, arrived: float) -> None:
        """A request whose key and body are good is on its way; `tenant` is an id, `name` what people call it."""
        self._running[going] = _Running(tenant, name, arrived)

    def finished(self, going: Going | None, outcome: str) -> None:
        """A request is over. What a worker still sends of one that was cancelled is on record, but not counted here."""
        self._failed += outcome in OURS
        limited = outcome in LIMITED
        self._limited += limited
        running = None if going is None else self._running.pop(going, None)
        if going is not None and running is not None:
            tally = self._count(going, running, self._clock())
            tally.limited += limited

    def look(self, now: float) -> None:
        """Take the time since the last look in. Twice in one second it waits for the next."""
        if int(now) <= self.pulse.second:
            return
        for going, running in self._running.items():
            self._count(going, running, now).in_flight += 1
        elapsed = max(now - self._looked_at, LOOK_S)
        scale = 1.0 if elapsed < 1.5 * LOOK_S else LOOK_S / elapsed  # the loop was late: a rate is no sum of seconds
        for tally in self._tallies.values():
            tally.tokens *= scale
        p50, p95 = self.pulse.ttft(now)
        figures = Figures(
            tokens=self._tokens * scale,
            in_flight=len(self._running),
            queued=len(self._line),
            wait_s=self._line.longest_wait(),
            ttft_p50=p50,
            ttft_p95=p95,
            failed=self._failed,
            limited=self._limited,
            workers=self._fleet.serving(),
        )
        self.pulse.sample(int(now), figures, self._tallies)
        self._looked_at = now
        self._tokens = self._failed = self._limited = 0
        self._tallies = {}
        self.looked.set()
        self.looked = asyncio.Event()

    async def run(self) -> None:
        """Look once a second, in the middle of it, until cancelled."""
        planned = int(self._clock()) + LOOK_S / 2
        while True:
            planned += LOOK_S
            await asyncio.sleep(max(0.0, planned - self._clock()))
            now = self._clock()
            self.look(now)
            if now > planned + LOOK_S:
                planned = int(now) + LOOK_S / 2

    def time_of(self, second: int) -> float:
        """When that second was, in seconds since 1970."""
        return self._wall_clock() - (self._clock() - second)

    def _count(self, going: Going, running: _Running, now: float) -> Tally:
        """Count what a request received since the last look."""
        tally = self._tallies.get(running.tenant)
        if tally is None:
            tally = self._tallies[running.tenant] = Tally(running.name)
        attempts = going.attempts
        received = attempts[0].received if len(attempts) == 1 else sum(attempt.received for attempt in attempts)
        new = received - running.counted
        if new:
            tally.tokens += new
            self._tokens += new
            running.counted = received
        if not running.begun and going.first_token_at is not None:
            running.begun = True
            self.pulse.first_token(now, going.first_token_at - running.arrived)
        return tally
