"""Sums by day: whatever is repeated, comes in another order or is read again after a crash, they are a fold from scratch."""

import asyncio
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core import daily
from gateway.core.daily import Place, Sums, day_of, folded
from gateway.core.ledger import LOST, Ledger
from gateway.store.rows import Progress
from gateway.store.usage import place_of, usage_row
from tests.usage.real import store
from tests.usage.records import check, closed, opened, stream

TODAY = 739_676


def of(record, *, day=TODAY, tenant="t1", key="k1", model="m", version="1"):
    return replace(record, day=day, tenant=tenant, key=key, model=model, version=version)


@pytest.mark.parametrize(
    ("day", "at_ms", "counted"),
    [
        (TODAY, 0, TODAY),
        (0, 0, daily.EPOCH),
        (0, 86_400_000 - 1, daily.EPOCH),
        (0, 86_400_000, daily.EPOCH + 1),
        (-1, 0, daily.EPOCH),
        (daily.LAST + 1, 5, daily.EPOCH),
        (0, 2**62, daily.LAST),
    ],
)
def test_the_day_of_a_request(day, at_ms, counted):
    assert day_of(day, at_ms) == counted


SUMS = st.builds(
    Sums, *(st.integers(0, daily.MOST) for _ in daily.SUMS[:-1]), st.floats(0, 100).map(lambda value: round(value, 3))
)


@given(SUMS, SUMS, SUMS)
def test_sums_can_be_added_in_any_order_and_never_pass_their_bound(one, two, three):
    left, right = one.plus(two).plus(three), three.plus(one.plus(two))
    for name in daily.SUMS[:-1]:
        assert (
            getattr(left, name)
            == getattr(right, name)
            == min(sum(getattr(x, name) for x in (one, two, three)), daily.MOST)
        )
    assert left.device_seconds == pytest.approx(right.device_seconds)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["stop", "length", LOST, "client_left"])), max_size=30))
def test_every_request_is_in_one_place(requests):
    rows = [closed(str(n), n, n, outcome=outcome) for n, (_, outcome) in enumerate(requests)]
    places = [Place("t", day, "k", "m", "1") for day, _ in requests]
    sums = folded(zip(places, rows, strict=True))
    assert sum(one.requests for one in sums.values()) == len(requests)
    assert sum(one.failed for one in sums.values()) == sum(outcome not in {"stop", "length"} for _, outcome in requests)
    assert sum(one.charged for one in sums.values()) == sum(range(len(requests)))


# --------------------------------------------------------------------- through a real database, with everything at once

HISTORY = [
    ("g1", of(opened("a", 1))), ("g2", of(opened("b", 1, gep="f1"), tenant="t2")), ("g1", check("a", 2, 64)),
    ("g1", of(closed("a", 3, 90, device_seconds=0.25))), ("g1", of(opened("c", 4))), ("g3", of(closed("b", 9, 64, gep="h1", outcome=LOST), tenant="t2")),
    ("g2", of(closed("b", 2, 77, gep="f1"), tenant="t2")), ("g1", of(closed("c", 5, 11), day=TODAY - 1)), ("g1", of(closed("d", 6, 12, cached=4), key="k2")),
    ("g1", of(closed("e", 7, 13, accepted=2, proposed=3), model="n")), ("g1", of(closed("f", 8, 14, outcome="client_left"), day=0)),
    ("g2", of(closed("g", 3, 15, gep="f1"), version="2")), ("g2", of(opened("h", 4, gep="f1"))), ("g2", of(closed("h", 5, 16, gep="f1"))),
]  # fmt: skip
EXPECTED = {"a": 90, "b": 64, "c": 11, "d": 12, "e": 13, "f": 14, "g": 15, "h": 16}


async def written(table, entries, cuts):
    """What readers of the stream write that die at each of `cuts`, some with records that they read and did not write."""
    chance = random.Random(len(entries))
    for cut in [*cuts, len(entries)]:
        progress = await table.progress()
        ledger, position, batch = Ledger(), progress.floor - 1, []
        for entry in entries[progress.floor - 1 : max(cut, progress.applied)]:
            position = entry.sequence
            if (done := ledger.apply(entry)) is not None:
                batch.append(done)
            if chance.random() < 0.3:
                await table.record(batch, Progress(position, position, ledger.floor(position)))
                batch = []
        if batch and chance.random() < 0.5:
            await table.record(batch, Progress(position, position, ledger.floor(position)))
    rest = [done for entry in entries if (done := Ledger().apply(entry)) is not None]
    await table.record(rest, Progress(len(entries), len(entries), len(entries) + 1))


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, len(HISTORY) - 1), st.integers(0, 20)), max_size=20),
    st.lists(st.integers(1, len(HISTORY)), max_size=3).map(sorted),
)
def test_sums_are_those_of_a_fold_from_scratch(tmp_path_factory, repeated, cuts):
    """Each pair repeats a record so many places further back in the stream; readers die, and others go on."""
    lanes = [(float(place), *pair) for place, pair in enumerate(HISTORY)]
    lanes += [(index + 0.5 + later, *HISTORY[index]) for index, later in repeated]
    entries = stream(*((author, record) for _, author, record in sorted(lanes, key=lambda lane: lane[0])))

    async def run():
        async with store(tmp_path_factory.mktemp("daily")) as one:
            await written(one.usage, entries, cuts)
            rows = await one.usage.rows()
            assert {row.id: row.charged for row in rows} == EXPECTED
            scratch, once = Ledger(), {}
            for entry in entries:
                if (done := scratch.apply(entry)) is not None:
                    once.setdefault(done.close.aid, usage_row(done))
            expected = folded((place_of(row), row) for row in once.values())
            kept = {}
            for tenant in await one.usage.tenants():
                counted, table, _ = await one.usage.counted(tenant)
                assert counted == table
                kept |= table
            assert kept == expected
            _, sums = await one.usage.sums(0)
            assert sum(row.tokens for row in sums) == sum(row.prompt + row.charged for row in rows)

    asyncio.run(run())


def test_a_table_that_counted_repetitions_would_be_found_out(tmp_path):
    """The control: the same rows, added up without a look at which of them are new."""

    async def run():
        async with store(tmp_path) as one:
            from gateway.store import usage as module

            batch = [done for entry in stream(*HISTORY) if (done := Ledger().apply(entry)) is not None]
            for _ in range(2):
                await one.usage.record(batch, Progress(1, 1, 1))
                async with one.usage._database.write() as connection:
                    await module._add_up(connection, [usage_row(done) for done in batch])
            counted, table, _ = await one.usage.counted("t1")
            assert counted != table

    asyncio.run(run())


def test_a_row_has_the_day_that_its_record_says():
    assert (
        msgspec.structs.asdict(usage_row(Ledger().apply(stream(("g1", of(closed("x", 1, 1), day=5)))[0])))["day"] == 5
    )
