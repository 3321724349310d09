"""Days that begin late, twice, or not at all."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.calendar import begins, day, month

ZONES = ("UTC", "Europe/Berlin", "Africa/Cairo", "America/Santiago", "America/Havana", "Pacific/Apia", "Asia/Kathmandu",
         "America/Toronto", "Pacific/Kiritimati", "Asia/Beirut")  # fmt: skip
INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("zone", "local", "first"),
    [
        ("UTC", date(2026, 12, 1), "2026-12-01T00:00:00"),
        ("Europe/Berlin", date(2015, 7, 1), "2015-06-30T22:00:00"),
        ("Africa/Cairo", date(2024, 4, 26), "2024-04-25T22:00:00"),  # 00:00 does not exist: it begins at 01:00
        ("America/Santiago", date(2023, 9, 3), "2023-09-03T04:00:00"),  # the same
        ("America/Havana", date(2015, 11, 1), "2015-11-01T04:00:00"),  # 00:00 comes twice: the first one
        ("Pacific/Apia", date(2011, 12, 31), "2011-12-30T10:00:00"),  # the 30th was left out
        ("America/Toronto", date(1919, 3, 31), "1919-03-31T04:30:00"),  # clocks went from 23:30 to 00:30
    ],
)
def test_where_a_day_begins(zone: str, local: date, first: str) -> None:
    assert begins(ZoneInfo(zone), local).isoformat() == f"{first}+00:00"


def test_the_second_midnight_is_still_the_same_day() -> None:
    havana = ZoneInfo("America/Havana")
    first = datetime(2015, 11, 1, 4, 30, tzinfo=UTC)
    assert day(havana, first) == day(havana, first + timedelta(hours=1))
    assert day(havana, first).end - day(havana, first).start == timedelta(hours=25)


def test_months_are_of_local_days() -> None:
    tonga = ZoneInfo("Pacific/Kiritimati")  # 14 hours ahead
    span = month(tonga, datetime(2026, 12, 31, 10, 0, tzinfo=UTC))
    assert (span.id, span.start.isoformat()) == (2027 * 12, "2026-12-31T10:00:00+00:00")
    assert span.end == begins(tonga, date(2027, 2, 1))


@given(st.sampled_from(ZONES), INSTANTS, st.timedeltas(timedelta(0), timedelta(days=40)))
def test_every_instant_is_in_its_period_and_ids_never_decrease(zone: str, now: datetime, later: timedelta) -> None:
    for period in (day, month):
        one, other = period(ZoneInfo(zone), now), period(ZoneInfo(zone), now + later)
        assert one.start <= now < one.end
        assert one.id <= other.id
        assert (one.id == other.id) == (one == other)
        assert period(ZoneInfo(zone), one.start) == one
        assert period(ZoneInfo(zone), one.end).id > one.id
        assert period(ZoneInfo(zone), one.end).start == one.end


@given(st.sampled_from(ZONES), st.dates(date(1900, 1, 2), date(2090, 1, 1)))
def test_a_date_begins_where_it_is_first_seen(zone: str, local: date) -> None:
    place = ZoneInfo(zone)
    first = begins(place, local)
    assert first.astimezone(place).date() >= local
    assert (first - timedelta(seconds=1)).astimezone(place).date() < local
