"""Usage by day in real databases: it is what the rows add up to, whatever is repeated, and outlives them."""

import asyncio
from datetime import date

import pytest
from msgspec.structs import replace

from gateway.core import daily
from gateway.core.daily import Place, Sums, folded
from gateway.core.ledger import Closed
from gateway.store.rows import Actor, DaySum, Progress
from gateway.store.usage import place_of, usage_row
from gateway.store.usage_report import Question
from shared.errors import StaleRecordError
from tests.store.raw import rows, run
from tests.usage.records import closed

BY = Actor("local", name="test")
DAY_MS = 86_400_000
TODAY = date(2026, 3, 1).toordinal()


def at(day, hour=12):
    """A time of that UTC day."""
    return (day - daily.EPOCH) * DAY_MS + hour * 3_600_000


def done(rid, charged=5, *, day=TODAY, sequence=3, tenant="t1", key="k1", model="m", version="1", at_ms=None, **more):
    close = replace(closed(rid, 2, charged, **more), tenant=tenant, key=key, model=model, version=version, day=day)
    return Closed(sequence, at(TODAY) if at_ms is None else at_ms, close)


async def kept(settings):
    """What the table says, as a fold would."""
    names = ", ".join((*Place._fields, *Sums.__struct_fields__))
    return {Place(*row[:5]): Sums(*row[5:]) for row in await rows(settings, f"SELECT {names} FROM usage_days")}


async def test_a_request_counts_in_its_day_with_its_key_model_and_version(store, settings):
    batch = [
        done("a", 5, cached=2, device_seconds=0.5),
        done("b", 7, accepted=3, proposed=4, device_seconds=0.25),
        done("c", 1, outcome="client_left"),
        done("d", 2, day=TODAY - 1),
        done("e", 3, key="k2"),
        done("f", 4, model="n"),
        done("g", 6, version="2"),
        done("h", 8, tenant="t2"),
    ]
    assert await store.usage.record(batch, Progress(3, 9, 4)) == 8
    table = await kept(settings)
    assert table[Place("t1", TODAY, "k1", "m", "1")] == Sums(3, 1, 21, 2, 13, 13, 3, 4, 0.75)
    assert {place: sums.charged for place, sums in table.items() if sums.requests == 1} == {
        Place("t1", TODAY - 1, "k1", "m", "1"): 2,
        Place("t1", TODAY, "k2", "m", "1"): 3,
        Place("t1", TODAY, "k1", "n", "1"): 4,
        Place("t1", TODAY, "k1", "m", "2"): 6,
        Place("t2", TODAY, "k1", "m", "1"): 8,
    }


async def test_what_is_repeated_counts_once(store, settings):
    for _ in range(3):
        await store.usage.record([done("a"), done("a", 9), done("b")], Progress(3, 9, 4))
    assert await store.usage.record([done("a", 999), done("c"), done("c", 7)], Progress(5, 9, 6)) == 1
    assert await kept(settings) == {Place("t1", TODAY, "k1", "m", "1"): Sums(3, 0, 21, 0, 15, 15, 0, 0, 0.0)}


async def test_two_that_write_the_same_at_once_count_it_once(store, settings):
    batch = [done(f"r{n}", n, tenant=f"t{n % 5}", day=TODAY - n % 3) for n in range(60)]
    written = await asyncio.gather(*(store.usage.record(batch[::step], Progress(3, 9, 4)) for step in (1, -1, 1, -1)))
    assert sum(written) == 60
    everything = [usage_row(one) for one in batch]
    assert await kept(settings) == folded((place_of(row), row) for row in everything)


async def test_who_was_overtaken_writes_nothing(store, settings):
    """Two that take themselves for the keeper: the one that did not see the other's progress begins anew."""
    seen = await store.usage.progress()
    await store.usage.record([done("a")], Progress(3, 9, 4), after=seen)
    with pytest.raises(StaleRecordError):
        await store.usage.record([done("b")], Progress(2, 8, 2), after=seen)
    assert await store.usage.known(["a", "b"]) == {"a"}
    assert await store.usage.progress() == Progress(3, 9, 4)
    assert sum(sums.requests for sums in (await kept(settings)).values()) == 1


@pytest.mark.parametrize("day", [0, -5, daily.LAST + 1, 2**62])
async def test_a_day_that_is_none_is_the_utc_day_of_the_record(store, settings, day):
    await store.usage.record([done("a", day=day, at_ms=at(TODAY, 23))], Progress(3, 9, 4))
    assert [place.day for place in await kept(settings)] == [TODAY]
    assert [row.day for row in await store.usage.rows()] == [TODAY]


async def test_nonsense_fills_a_sum_up_and_breaks_nothing(store, settings):
    for n in range(4):
        await store.usage.record([done(f"{n}-{m}", 2**63 - 1) for m in range(600)], Progress(3, 9, 4))
    [sums] = (await kept(settings)).values()
    assert (sums.requests, sums.charged) == (2400, daily.MOST)
    _, [row] = await store.usage.sums(TODAY)
    assert row.tokens >= daily.MOST
    counted, table, _ = await store.usage.counted("t1")
    assert counted == table
    [group] = (await store.usage.report(Question())).groups
    assert group.charged == daily.MOST


async def test_sums_and_their_place_in_the_stream(store):
    await store.usage.record(
        [
            done("a", 5),
            done("b", 6, version="2"),
            done("c", 7, day=TODAY - 3),
            done("d", 8, day=TODAY - 40),
            done("e", 9, key="k2"),
        ],
        Progress(8, 99, 4),
    )
    progress, sums = await store.usage.sums(TODAY - 31)
    assert progress == Progress(8, 99, 4)
    assert set(sums) == {
        DaySum("t1", "k1", "m", TODAY, 5 + 6 + 2 * 7),
        DaySum("t1", "k1", "m", TODAY - 3, 7 + 7),
        DaySum("t1", "k2", "m", TODAY, 9 + 7),
    }


# ------------------------------------------------------------------------------------------------------------ retention


async def test_old_rows_go_in_small_batches_and_their_sums_stay(store, settings, clock):
    clock.now = at(TODAY, 18)
    old = [done(f"old{n}", n, day=TODAY - 10, at_ms=at(TODAY - 10)) for n in range(7)]
    new = [done(f"new{n}", n, at_ms=at(TODAY)) for n in range(3)]
    await store.usage.record([*old, *new], Progress(10, at(TODAY) * 1_000_000, 11))
    before = await kept(settings)
    assert [await store.usage.prune(9 * DAY_MS, 3) for _ in range(4)] == [3, 3, 1, 0]
    assert {row.id for row in await store.usage.rows()} == {"new0", "new1", "new2"}
    assert await kept(settings) == before


async def test_a_row_that_is_not_in_its_days_sums_is_never_deleted(store, settings, clock):
    clock.now = at(TODAY, 18)
    await store.usage.record(
        [done("counted", day=TODAY - 10, at_ms=at(TODAY - 10)), done("not", day=TODAY - 11, at_ms=at(TODAY - 11))],
        Progress(10, at(TODAY) * 1_000_000, 11),
    )
    await run(settings, "DELETE FROM usage_days WHERE day = :day", day=TODAY - 11)
    assert await store.usage.prune(5 * DAY_MS, 10) == 1
    assert await store.usage.known(["counted", "not"]) == {"not"}


async def test_what_was_deleted_does_not_count_again_when_it_is_read_again(store, settings, clock):
    """A stream that came back from a backup is read from its start: the rows that are gone would be new."""
    clock.now = at(TODAY, 18)
    batch = [done("old", day=TODAY - 10, at_ms=at(TODAY - 10)), done("new", at_ms=at(TODAY))]
    await store.usage.record(batch, Progress(10, at(TODAY) * 1_000_000, 11))
    before = await kept(settings)
    assert await store.usage.prune(5 * DAY_MS, 10) == 1
    assert await store.usage.record(batch, Progress(10, at(TODAY) * 1_000_000, 11)) == 0
    assert await kept(settings) == before
    assert await store.usage.known(["old", "new"]) == {"new"}


async def test_a_clock_that_is_ahead_makes_nobody_skip_what_comes(store, clock):
    """Ours is a month ahead of the bus's: rows go too early, but no request is lost, nor counted again."""
    clock.now = at(TODAY + 30)
    batch = [done("a", at_ms=at(TODAY) - 1), done("b", at_ms=at(TODAY))]
    await store.usage.record(batch, Progress(10, at(TODAY) * 1_000_000, 11))
    assert [await store.usage.prune(DAY_MS, 10) for _ in range(2)] == [1, 0]
    assert await store.usage.record([*batch, done("c", at_ms=at(TODAY))], Progress(11, at(TODAY) * 1_000_000, 12)) == 1
    assert await store.usage.known("abc") == {"b", "c"}


# ------------------------------------------------------------------------------------------------------------- reports


async def filled(store):
    acme = await store.tenants.create("acme", by=BY)
    key, _ = await store.keys.create("acme", "laptop", by=BY)
    await store.usage.record(
        [
            done("a", 5, tenant=acme.id, key=key.id, device_seconds=1.5),
            done("b", 6, tenant=acme.id, key=key.id, day=TODAY - 1, model="n"),
            done("c", 7, tenant="gone", key="gone-key"),
            done("d", 8, tenant=acme.id, key="k2", outcome="worker_failed"),
        ],
        Progress(4, 9, 5),
    )
    return acme, key


async def test_a_report_is_grouped_by_what_is_asked_for(store):
    acme, key = await filled(store)

    async def asked(*by, **which):
        page = await store.usage.report(Question(by, **which))
        assert page.after is None
        return page.groups

    [everything] = await asked()
    assert (everything.requests, everything.failed, everything.charged, everything.prompt) == (4, 1, 26, 28)
    assert everything.device_seconds == pytest.approx(1.5)
    assert (everything.tenant_id, everything.day) == (None, None)
    assert {(one.tenant_id, one.tenant, one.charged) for one in await asked("tenant")} == {
        (acme.id, "acme", 19),
        ("gone", None, 7),
    }
    assert [(one.day, one.charged) for one in await asked("day", tenant_id=acme.id)] == [
        (date.fromordinal(TODAY - 1), 6),
        (date.fromordinal(TODAY), 13),
    ]
    assert [(one.key, one.model, one.charged) for one in await asked("key", "model", key_id=key.id)] == [
        ("laptop", "m", 5),
        ("laptop", "n", 6),
    ]
    assert [one.charged for one in await asked("version", model="m", first=TODAY, last=TODAY)] == [20]
    assert await asked("tenant", first=TODAY + 1) == ()
    assert await asked(first=TODAY + 1) == ()


async def test_pages_hold_every_group_once_in_order(store):
    await store.usage.record(
        [
            done(f"r{n}", n, tenant=f"t{n % 7}", day=TODAY - n % 5, model=f"m{n % 3}", version=f"v{n % 2}")
            for n in range(210)
        ],
        Progress(4, 9, 5),
    )
    question = Question(("day", "tenant", "model", "version"))
    whole = await store.usage.report(question)
    groups, after = [], None
    while True:
        page = await store.usage.report(question, after=after, most=11)
        groups += page.groups
        assert len(page.groups) <= 11
        after = page.after
        if after is None:
            break
    assert tuple(groups) == whole.groups
    assert len(groups) == 210
    assert [one.day for one in groups] == sorted(one.day for one in groups)


async def test_ones_own_usage_is_ones_own(store):
    acme, _ = await filled(store)
    days, split = await store.usage.own(acme.id, TODAY - 5, 50)
    assert [(one.day.toordinal(), one.charged) for one in days.groups] == [(TODAY, 13), (TODAY - 1, 6)]
    assert [(one.day.toordinal(), one.model, one.charged) for one in split.groups] == [
        (TODAY, "m", 13),
        (TODAY - 1, "n", 6),
    ]
    _, short = await store.usage.own(acme.id, TODAY - 5, 1)
    assert [one.charged for one in short.groups] == [13]
    assert short.after


# ------------------------------------------------------------------------------------------------- to be verified


async def test_what_is_kept_is_what_the_rows_add_up_to(store, settings, clock):
    acme, _ = await filled(store)
    assert await store.usage.tenants() == tuple(sorted((acme.id, "gone")))
    counted, table, pruned_at = await store.usage.counted(acme.id)
    assert counted == table
    assert len(table) == 3
    assert pruned_at == 0
    await run(settings, "UPDATE usage SET charged = 500 WHERE id = 'a'")
    counted, table, _ = await store.usage.counted(acme.id)
    assert counted != table


async def test_rows_come_in_pages_by_the_time_they_closed(store):
    await store.usage.record([done(f"r{n}", at_ms=at(TODAY) + n // 3) for n in range(10)], Progress(4, 9, 5))
    seen, after = [], (0, "")
    while page := await store.usage.page(after, 4):
        seen += [row.id for row in page]
        after = (page[-1].closed_at, page[-1].id)
    assert seen == [f"r{n}" for n in range(10)]
    found, _ = await store.usage.found(["r1", "r9", "x"])
    assert set(found) == {"r1", "r9"}
