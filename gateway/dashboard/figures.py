"""The live figures as they are shown: numbers with units, lines of the last 15 minutes, and both in words."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.core.pulse import SECONDS, Pulse, Track, per_second, thinned
from gateway.dashboard.pages import ENVIRONMENT, NOTHING
from gateway.services.pulse import PulseWatch

WIDTH: Final = 180
HEIGHT: Final = 40
_STEP_S: Final = SECONDS // WIDTH
_MINUTE: Final = 60
_seconds = ENVIRONMENT.filters["seconds"]
_number = ENVIRONMENT.filters["number"]


class Line(msgspec.Struct, frozen=True):
    """A series drawn: pieces of it between gaps, as points of an SVG of `WIDTH` by `HEIGHT`."""

    series: str
    pieces: tuple[str, ...]


class Figure(msgspec.Struct, frozen=True):
    """One figure of the overview. `words` say what its lines show."""

    id: str
    label: str
    value: str
    unit: str
    note: str
    lines: tuple[Line, ...]
    words: str


def figures(pulse: Pulse, *, drawn: bool = True) -> list[Figure]:
    """Those of a gateway, in the order in which they are shown; without lines and words unless they are to be `drawn`.

    Every second somebody looks at them, in the loop that serves requests.
    """
    now, tracks, end = pulse.figures, pulse.tracks, pulse.second
    failed, limited = (round(tracks[name].total) for name in ("failed", "limited"))
    speed = per_second(tracks["tokens"], end)
    p50, p95 = _seconds(now.ttft_p50), _seconds(now.ttft_p95)
    waiting = f"predicted wait {_seconds(now.wait_s)}" if now.queued else "nobody waits"
    said = (
        (("tokens",), "Tokens per second", (_speed(speed), "tokens/s", "mean of 5 s")),
        (("in_flight",), "Requests in flight", (_number(now.in_flight), "requests", "at this gateway")),
        (("queued",), "Queue", (_number(now.queued), "requests", waiting)),
        (("ttft_p50", "ttft_p95"), "Time to first token", (p50, "p50", f"p95 {p95}, in 1 min")),
        (("failed", "limited"), "Errors", (_number(failed), "in 15 min", f"{_number(limited)} held to limits")),
        (("workers",), "Workers", (_number(now.workers), "ready", "seen from here")),
    )
    if drawn:
        return [_figure(pulse, *one) for one in said]
    return [Figure(names[0], label, value, unit, note, (), "") for names, label, (value, unit, note) in said]


def _speed(value: float) -> str:
    return str(_number(value, 1 if value < 100 else 0))  # noqa: PLR2004 - three digits


def _figure(pulse: Pulse, names: tuple[str, ...], label: str, said: tuple[str, str, str]) -> Figure:
    value, unit, note = said
    series = [thinned(pulse.tracks[one].series(pulse.second), _STEP_S) for one in names]
    top = max((value for values in series for value in values if value is not None), default=0.0)
    lines = tuple(Line(one, pieces(values, top)) for one, values in zip(names, series, strict=True))
    words = f"{label}, last 15 minutes: now {value} {unit}, {note}; {_summary(names[0], series[0])}."
    return Figure(names[0], label, value, unit, note, lines, words)


def _summary(name: str, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "nothing to show yet"
    write = _seconds if name.startswith("ttft") else lambda value: _number(value, 1)
    return f"lowest {write(min(known))}, highest {write(max(known))}"


def pieces(values: Sequence[float | None], top: float) -> tuple[str, ...]:
    """Points of polylines, one for each stretch without a gap; zero is at the bottom, `top` at the top."""
    found: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            found.append([])
            continue
        y = HEIGHT - 1 - (HEIGHT - 2) * (value / top if top else 0.0)
        found[-1].append(f"{place},{y:.1f}")
    # One point alone would not be seen.
    return tuple(" ".join(points if len(points) > 1 else points * 2) for points in found if points)


class Chart(msgspec.Struct, frozen=True):
    """A series drawn large: pieces as those of a `Line`, the value at its top, and how high the limit is, in points."""

    pieces: tuple[str, ...]
    top: str
    limit: float | None


def chart(watch: PulseWatch, track: Track, limit: int) -> Chart:
    """A tenant's series; a limit of 0 is none."""
    values = thinned(track.series(watch.pulse.second), _STEP_S)
    top = max([float(limit), *(value for value in values if value is not None)])
    at = HEIGHT - 1 - (HEIGHT - 2) * limit / top if limit else None
    return Chart(pieces(values, top), str(_number(top)), at)


def tenant_tracks(watch: PulseWatch, tenant: str) -> dict[str, Track]:
    """A tenant's series; nothing in them where it was not active lately."""
    tracks = watch.pulse.tenants.get(tenant)
    if tracks is None:
        return {"tokens": Track(), "in_flight": Track(), "limited": Track()}
    return {"tokens": tracks.tokens, "in_flight": tracks.in_flight, "limited": tracks.limited}


class Minute(msgspec.Struct, frozen=True):
    """A row of the same in numbers. `None` where nobody looked."""

    at_ms: float
    values: tuple[str, ...]


TABLE: Final = (
    ("tokens", "Tokens/s"),
    ("in_flight", "In flight"),
    ("queued", "Queue"),
    ("wait_s", "Predicted wait"),
    ("ttft_p50", "First token p50"),
    ("ttft_p95", "First token p95"),
    ("failed", "Errors"),
    ("limited", "Turned away"),
    ("workers", "Workers"),
)
_SUMS: Final = frozenset({"failed", "limited"})
_TIMES: Final = frozenset({"wait_s", "ttft_p50", "ttft_p95"})


def minutes(watch: PulseWatch, tracks: dict[str, Track], names: Sequence[str]) -> list[Minute]:
    """Means, of errors sums, minute by minute, the newest first: a chart for those who do not see it."""
    end = watch.pulse.second
    series = {name: tracks[name].series(end) for name in names}
    rows = []
    for begins in range(SECONDS - _MINUTE, -1, -_MINUTE):
        values = []
        for name in names:
            known = [value for value in series[name][begins : begins + _MINUTE] if value is not None]
            values.append(_cell(name, known))
        if any(value != NOTHING for value in values):
            rows.append(Minute(watch.time_of(end - SECONDS + 1 + begins) * 1000, tuple(values)))
    return rows


def _cell(name: str, known: list[float]) -> str:
    if not known:
        return NOTHING
    if name in _SUMS:
        return str(_number(sum(known)))
    mean = sum(known) / len(known)
    return str(_seconds(mean) if name in _TIMES else _number(mean, 1))


class Share(msgspec.Struct, frozen=True):
    """A tenant's part of the service in the last 15 minutes. `part` of all tokens, 0 to 1."""

    name: str
    tokens: int
    part: float
    in_flight: int
    speed: float


def shares(pulse: Pulse) -> list[Share]:
    """Tenants that were served, most first."""
    every = sum(tracks.tokens.total for tracks in pulse.tenants.values())
    found = [
        Share(
            tracks.name,
            round(tracks.tokens.total),
            tracks.tokens.total / every if every else 0.0,
            int(sum(tracks.in_flight.recent(pulse.second, 1))),
            per_second(tracks.tokens, pulse.second),
        )
        for tracks in pulse.tenants.values()
    ]
    return sorted(found, key=lambda share: (-share.tokens, -share.in_flight, share.name))


def history(watch: PulseWatch, tracks: dict[str, Track]) -> dict[str, Any]:
    """Series for charts: `until` in seconds since 1970 is the time of the last value of each."""
    end = watch.pulse.second
    return {
        "until": round(watch.time_of(end)),
        "series": {
            name: [None if value is None else round(value, 3) for value in track.series(end)]
            for name, track in tracks.items()
        },
    }


def latest(watch: PulseWatch, tracks: dict[str, Track]) -> dict[str, Any]:
    """The last value of each, to go on from `history` with."""
    end = watch.pulse.second
    values = {name: next(iter(track.recent(end, 1)), None) for name, track in tracks.items()}
    return {"at": round(watch.time_of(end)), "values": values}
