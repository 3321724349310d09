"""Days and months of a tenant's own calendar, as the periods of its budgets. Pure: zones are tables, not clocks.

A period lasts from the first instant of its local date to the first of the next, in UTC. Local midnight is not always
there (Cairo's and Santiago's clocks go forward at midnight, Samoa once left out a day) and sometimes comes twice
(Havana's go back to it): what counts is the first instant that bears the date, so that a day begins once and ids never
decrease.
"""

from datetime import UTC, date, datetime, time, timedelta, tzinfo

import msgspec

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


class Span(msgspec.Struct, frozen=True):
    """One period: a number that grows from one to the next, and the UTC instants [start, end)."""

    id: int
    start: datetime
    end: datetime


def day(zone: tzinfo, now: datetime) -> Span:
    """The local day of the aware instant `now`. Its id is the date's ordinal (1 is 1 January of year 1)."""
    local = _date(zone, now)
    while begins(zone, local + _DAY) <= now:
        local += _DAY
    while begins(zone, local) > now:
        local -= _DAY
    following = local + _DAY
    return Span(local.toordinal(), begins(zone, local), begins(zone, following))


def month(zone: tzinfo, now: datetime) -> Span:
    """The local month of the aware instant `now`. Its id counts months from January of year 0."""
    first = date.fromordinal(day(zone, now).id).replace(day=1)
    following = (first + 31 * _DAY).replace(day=1)
    return Span(first.year * 12 + first.month - 1, begins(zone, first), begins(zone, following))


def begins(zone: tzinfo, local: date) -> datetime:
    """The first UTC instant whose local date in `zone` is `local`, or, if that date was left out, a later one."""
    midnight = datetime.combine(local, time(), zone)  # fold 0: of two midnights the first
    instant = midnight.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return instant
    # Clocks went forward over midnight: the date begins where they did, to the second, as zones are kept.
    low, high = instant - _DAY, instant
    after = _offset(zone, high)
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        low, high = (low, middle) if _offset(zone, middle) == after else (middle, high)
    return high


def _date(zone: tzinfo, instant: datetime) -> date:
    return instant.astimezone(zone).date()


def _offset(zone: tzinfo, instant: datetime) -> timedelta | None:
    return instant.astimezone(zone).utcoffset()
