"""The last 15 minutes, second by second: what a gateway did, and each of its tenants. Pure, and bounded in memory.

Seconds are numbered by the caller, on a clock that does not run backwards. A second in which nobody looked is a gap,
not a zero: whoever draws the series must be able to tell one from the other.
"""

import math
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

SECONDS: Final = 900
"""How far back all of this goes."""
TENANTS: Final = 256
"""Most tenants of which series are kept: those that were active last."""
WINDOW_S: Final = 60.0
"""Percentiles are those of so long."""
_WAITS: Final = 2048
_GAP: Final = math.nan

LIMITED: Final = frozenset({"requests", "tokens", "concurrency", "long_prompts", "insufficient_quota"})
"""Outcomes of requests that their tenant's own limits turned away."""


class Track:
    """One figure's values by second."""

    def __init__(self) -> None:
        self._values = array("f", [_GAP]) * SECONDS
        self._last: int | None = None
        self.total = 0.0
        """All of them together."""

    def put(self, second: int, value: float) -> None:
        """The value of a second; those between the last one and it are gaps. An earlier second changes nothing."""
        if self._last is None:
            self._last = second - 1
        for skipped in range(max(self._last + 1, second - SECONDS), second):
            self._set(skipped, _GAP)
        if second > self._last:
            self._set(second, value)
            self._last = second

    def series(self, until: int) -> list[float | None]:
        """The values of the `SECONDS` seconds up to `until` and with it, oldest first; `None` is a gap."""
        return [self._at(second) for second in range(until - SECONDS + 1, until + 1)]

    def recent(self, until: int, seconds: int) -> list[float]:
        """The values that there are of the last `seconds` up to `until` and with it."""
        found = (self._at(second) for second in range(until - seconds + 1, until + 1))
        return [value for value in found if value is not None]

    def _set(self, second: int, value: float) -> None:
        place = second % SECONDS
        before = self._values[place]
        self._values[place] = value
        self.total += _counted(self._values[place]) - _counted(before)

    def _at(self, second: int) -> float | None:
        if self._last is None or not self._last - SECONDS < second <= self._last:
            return None
        value = self._values[second % SECONDS]
        return None if math.isnan(value) else value


def _counted(value: float) -> float:
    return 0.0 if math.isnan(value) else value


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One second of a gateway. `ttft_p50`, `ttft_p95` and `wait_s` in seconds; `failed` and `limited` are requests.

    Percentiles are those of the last minute, `None` if no first token came in it. `limited` are requests that quotas
    turned away, `failed` those that we could not serve.
    """

    tokens: float = 0.0
    in_flight: int = 0
    queued: int = 0
    wait_s: float = 0.0
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    failed: int = 0
    limited: int = 0
    workers: int = 0


class Tally(msgspec.Struct):
    """One second of a tenant: tokens and refusals in it, requests in flight at its end."""

    name: str
    tokens: float = 0.0
    in_flight: int = 0
    limited: int = 0


class TenantTracks:
    """A tenant's series; `name` is the one it had when it was last active."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = 0
        self.tokens = Track()
        self.in_flight = Track()
        self.limited = Track()

    def put(self, second: int, tally: Tally) -> None:
        """Take a second in."""
        self.tokens.put(second, tally.tokens)
        self.in_flight.put(second, tally.in_flight)
        self.limited.put(second, tally.limited)


class Pulse:
    """All series of one gateway."""

    def __init__(self, most_tenants: int = TENANTS) -> None:
        self.second = 0
        """The last one that was taken in."""
        self.figures = Figures()
        self.tracks: dict[str, Track] = {name: Track() for name in Figures.__struct_fields__}
        self.tenants: dict[str, TenantTracks] = {}
        """By id, the one that was active last at the end."""
        self._most = most_tenants
        self._waits: deque[tuple[float, float]] = deque(maxlen=_WAITS)

    def first_token(self, now: float, ttft: float) -> None:
        """A request got its first token after `ttft` seconds."""
        self._waits.append((now, ttft))

    def ttft(self, now: float) -> tuple[float | None, float | None]:
        """Median and 95th percentile of the time to the first token in the last minute (at most 2,048 requests)."""
        waits = sorted(ttft for at, ttft in self._waits if at > now - WINDOW_S)
        return (percentile(waits, 0.5), percentile(waits, 0.95)) if waits else (None, None)

    def sample(self, second: int, figures: Figures, tallies: Mapping[str, Tally]) -> None:
        """Take a second in: the gateway's figures, and the tallies of tenants by id. Nothing in it means zeros."""
        if second <= self.second:
            return
        self.second, self.figures = second, figures
        for name, track in self.tracks.items():
            value = getattr(figures, name)
            track.put(second, _GAP if value is None else value)
        for tenant, tally in tallies.items():
            tracks = self._tracks_of(tenant, second, tally.name)
            if tracks is not None:
                tracks.active, tracks.name = second, tally.name
        for tenant in [old for old, tracks in self.tenants.items() if tracks.active <= second - SECONDS]:
            del self.tenants[tenant]
        for tenant, tracks in self.tenants.items():
            tracks.put(second, tallies.get(tenant) or Tally(tracks.name))

    def _tracks_of(self, tenant: str, second: int, name: str) -> TenantTracks | None:
        """A tenant's series, moved to the end; `None` where all that are kept belong to tenants active just now."""
        tracks = self.tenants.pop(tenant, None)
        if tracks is None:
            if len(self.tenants) >= self._most:
                idle = next(iter(self.tenants))
                if self.tenants[idle].active == second:
                    return None
                del self.tenants[idle]
            tracks = TenantTracks(name)
        self.tenants[tenant] = tracks
        return tracks


def percentile(ascending: Sequence[float], part: float) -> float:
    """The value that `part` of them do not exceed (nearest rank); at least one is needed."""
    return ascending[max(0, math.ceil(part * len(ascending)) - 1)]


def per_second(track: Track, until: int, seconds: int = 5) -> float:
    """The mean of what there is of the last `seconds`; 0 where there is nothing."""
    values = track.recent(until, seconds)
    return sum(values) / len(values) if values else 0.0


def thinned(series: Sequence[float | None], by: int) -> list[float | None]:
    """The means of `by` values each, oldest first; `None` where all of them are gaps."""
    means: list[float | None] = []
    for at in range(0, len(series), by):
        found = [value for value in series[at : at + by] if value is not None]
        means.append(sum(found) / len(found) if found else None)
    return means
