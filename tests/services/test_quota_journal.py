"""A gateway that starts knows what was used before it: the journal folded equals what an earlier life knew."""

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.accounts import Limits
from gateway.services.keyring import Principal
from gateway.services.quota_journal import NEVER_MADE, QuotaJournal, periods
from gateway.services.quotas import Allowances, Room, Size
from gateway.services.usage_reader import Stored
from gateway.store.rows import DaySum, Progress, QuotaRow, Snapshot
from shared.errors import BusError, NoStreamError
from shared.settings import LimitSettings
from tests.usage.records import closed, opened, stream

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp()
DAY = datetime(2026, 3, 10, tzinfo=UTC).toordinal()
ME = Principal("t1", "acme", "k1")
LIMITS = Limits(requests=100, tokens=10_000, daily=100_000, monthly=900_000, streams=50)


class Clock:
    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


class Table:
    """What the ledger had summed up to some place in the stream."""

    def __init__(self, floor=1, sums=(), known=()):
        self.floor, self.applied = floor, 0
        self.answer = (tuple(sums), set(known))
        self.since = None

    async def progress(self):
        return Progress(applied=self.applied, floor=self.floor)

    async def summed(self, since_day, ids):
        self.since = since_day
        sums, known = self.answer
        return sums, known & set(ids)


class Reader:
    """A stream that is read three messages at a time."""

    def __init__(self, entries):
        self.stored = [Stored(entry.sequence, entry.at_ms * 1_000_000, entry) for entry in entries]
        self.broken = 0

    async def read(self, sequence, most=3):
        if self.broken:
            self.broken -= 1
            raise BusError("not now")
        return [one for one in self.stored if one.sequence >= sequence][:most]

    async def since(self, instant, most=3):
        at_ns = instant.timestamp() * 1e9
        return [one for one in self.stored if one.at_ns >= at_ns][:most]


def at(entries, *ages_s):
    """The same entries, so many seconds before now."""
    return [
        type(entry)(entry.sequence, round((NOW - age) * 1000), entry.role, entry.author, entry.record)
        for entry, age in zip(entries, ages_s, strict=True)
    ]


def fresh(limits=LIMITS):
    quotas = Allowances(LimitSettings(), Clock(1_000.0), Clock(NOW))
    quotas.load(Snapshot("s", 1, (), (QuotaRow("t1", "", "", limits, 0, 1),)))
    return quotas


def books(quotas):
    """Used and reserved, by account and period."""
    return {
        (account.scope, kind, period): (budget.used, budget.reserved)
        for account in quotas.core.accounts()
        for kind, book in (("day", account.days), ("month", account.months))
        for period, budget in book.items()
        if budget.used or budget.reserved
    }


async def restored(table, reader, limits=LIMITS):
    quotas = fresh(limits)
    journal = QuotaJournal(quotas, table, reader, Clock(NOW))
    await journal.restore()
    assert quotas.restored
    return quotas, journal


async def test_sums_and_what_came_after_them_count_once_each():
    entries = stream(("g1", opened("a")), ("g1", closed("a", 2, 13)), ("g1", opened("b")), ("g1", closed("b", 4, 20)))
    table = Table(3, [DaySum("t1", "k1", "m", DAY, 20), DaySum("t1", "k1", "m", DAY - 9, 500)], "a")
    quotas, _ = await restored(table, Reader(at(entries, 3_000, 2_900, 2_800, 2_700)))
    own = ("t1", "", "")
    month = periods(DAY).month
    assert books(quotas)[own, "day", DAY] == (20 + 27, 0)
    assert books(quotas)[own, "month", month] == (20 + 27 + 500, 0)
    assert {scope for scope, _, _ in books(quotas)} == {own, ("t1", "k1", ""), ("t1", "", "m"), ("t1", "k1", "m")}
    assert table.since <= DAY - 31, "a month may have begun so long ago"


async def test_what_is_open_stays_reserved_until_it_closes_and_then_settles_once():
    record = type(opened("a"))(
        **{f: getattr(opened("a"), f) for f in opened("a").__struct_fields__} | {"reserved": 300, "day": DAY}
    )
    quotas, journal = await restored(Table(), Reader(at(stream(("g1", record)), 5)))
    own = ("t1", "", "")
    assert books(quotas)[own, "day", DAY] == (0, 300)
    assert quotas.streams() == 0, "its client is gone"
    (_, end) = at(stream(("g1", record), ("g1", closed("a", 2, 13, outcome="gateway_lost"))), 5, 0)
    for _ in range(2):
        journal.closed(type("Closed", (), {"close": end.record}))
    assert books(quotas)[own, "day", DAY] == (20, 0)


async def test_windows_remember_the_last_minute_and_no_more():
    entries = stream(*[("g1", closed(f"r{n}", n, 593)) for n in range(4)])
    quotas, _ = await restored(Table(5, known=["r0", "r1", "r2", "r3"]), Reader(at(entries, 70, 30, 6, 6)))
    requests, tokens = quotas.gauges(quotas.accounts("t1", "k1", "m"))
    # 600 tokens 30 s ago have come back since; of 1,200 six seconds ago, 1,000 have, a sixtieth of 10,000 each second.
    assert (requests.left, tokens.left) == (100, 9_800)
    assert books(quotas) == {}, "they were in the sums already"


async def test_our_failures_are_not_in_the_windows():
    entries = stream(("g1", closed("a", 1, 0, prompt=0, outcome="worker_failed")), ("g1", closed("b", 2, 0, prompt=0)))
    quotas, _ = await restored(Table(), Reader(at(entries, 0.1, 0.1)))
    requests, _ = quotas.gauges(quotas.accounts("t1", "k1", "m"))
    assert requests.left == 99


async def test_a_start_that_fails_half_way_has_changed_nothing():
    reader = Reader(at(stream(("g1", closed("a", 1, 13))), 1))
    reader.broken = 1
    quotas = fresh()
    journal = QuotaJournal(quotas, Table(), reader, Clock(NOW))
    with pytest.raises(BusError):
        await journal.restore()
    assert not quotas.restored
    assert books(quotas) == {}
    await journal.restore()
    assert books(quotas)[("t1", "", ""), "day", DAY] == (20, 0)


async def test_a_stream_that_was_never_made_keeps_nobody_waiting_one_that_is_missing_does():
    naps = []

    async def sleep(seconds):
        naps.append(seconds)
        if len(naps) > 40:
            raise asyncio.CancelledError

    class Missing(Reader):
        async def since(self, instant, most=3):
            raise NoStreamError("not there")

    quotas = fresh()
    await QuotaJournal(quotas, Table(), Missing([]), Clock(NOW), sleep=sleep).run()
    assert quotas.restored
    assert len(naps) == NEVER_MADE, "a server that has just started has still to recover its streams"
    naps.clear()
    quotas, table = fresh(), Table(floor=8)
    table.applied = 7
    with pytest.raises(asyncio.CancelledError):
        await QuotaJournal(quotas, table, Missing([]), Clock(NOW), sleep=sleep).run()
    assert not quotas.restored, "records were read of it: they must be somewhere"


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 300), st.sampled_from(["stop", "client_left", "open"])),
        max_size=12,
    ),
    cut=st.integers(0, 30),
    again=st.integers(0, 3),
)
async def test_replayed_is_as_lived(steps, cut, again):
    """Any requests, any place up to which the ledger had summed them, any records that were sent again."""
    lived = fresh()
    lived.restored = True
    records = []
    for number, (asked, made, outcome) in enumerate(steps):
        rid = f"r{number}"
        held = lived.reserve(rid, ME, "m", Size(0, 0, exact=7), Room(2_048, 512), asked=asked, choices=1)
        start = opened(rid)
        fields = {name: getattr(start, name) for name in start.__struct_fields__}
        start = type(start)(**fields | {"reserved": held.total, "day": held.periods.day})
        records.append(("g1", start))
        lived.leave(rid)
        if outcome != "open":
            end = closed(rid, 1, min(made, asked), outcome=outcome, day=held.periods.day)
            lived.close(end)
            records += [("g1", end)] * (1 + (again > number))
    entries = at(stream(*records), *([500.0] * len(records)))
    done = {}
    sums, applied = 0, min(cut, len(entries))
    for entry in entries[:applied]:
        record = entry.record
        if type(record).__name__ == "Close" and record.aid not in done:
            done[record.aid] = True
            sums += record.prompt + record.charged
    open_before = [
        e.sequence
        for e in entries[:applied]
        if type(e.record).__name__ == "Open" and e.record.aid.partition(".")[0] not in done
    ]
    floor = min([*open_before, applied + 1])
    summed = [DaySum("t1", "k1", "m", DAY, sums)] if sums else []
    quotas, _ = await restored(Table(floor, summed, done), Reader(entries))
    assert books(quotas) == books(lived)
