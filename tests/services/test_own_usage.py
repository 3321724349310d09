"""A tenant's own usage: however often it asks, the store is asked once in a while, and never by many at once."""

import asyncio
from datetime import date

import pytest

from gateway.core.daily import Sums
from gateway.http.usage import shown
from gateway.services import own_usage
from gateway.services.keyring import Principal
from gateway.services.own_usage import DOWN_S, FRESH_S, OwnUsage
from gateway.store.usage_report import Group, Page
from shared.errors import StoreError, UnavailableError

TODAY = date(2026, 3, 2)
NOTHING = (Page((), None), Page((), None))


class Table:
    """A store that answers when it is let."""

    def __init__(self):
        self.asked = []
        self.at_once = self.most_at_once = 0
        self.open = asyncio.Event()
        self.open.set()
        self.broken = False

    async def own(self, tenant_id, first, most):
        self.asked.append((tenant_id, first))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            await self.open.wait()
        finally:
            self.at_once -= 1
        if self.broken:
            raise StoreError("gone")
        return NOTHING


class Desk:
    def __init__(self):
        self.now = 0.0
        self.table = Table()
        self.own = OwnUsage(self.table, lambda: self.now)


@pytest.fixture
def desk():
    return Desk()


async def test_polling_asks_the_store_once_in_a_while(desk):
    for _ in range(100):
        assert await desk.own.of("t1", 1) is NOTHING
    assert desk.table.asked == [("t1", 1)]
    desk.now += FRESH_S
    await desk.own.of("t1", 1)
    assert len(desk.table.asked) == 2
    await desk.own.of("t1", 2)
    assert desk.table.asked[-1] == ("t1", 2), "a new day is another question"


async def test_who_asks_while_the_store_is_asked_gets_the_same_answer_and_may_leave(desk):
    desk.table.open.clear()
    many = [asyncio.create_task(desk.own.of("t1", 1)) for _ in range(50)]
    await asyncio.sleep(0)
    many[0].cancel()
    await asyncio.sleep(0)
    desk.table.open.set()
    assert await asyncio.gather(*many[1:]) == [NOTHING] * 49
    assert len(desk.table.asked) == 1


async def test_of_many_tenants_few_are_at_the_store_at_once_and_few_are_remembered(desk, monkeypatch):
    monkeypatch.setattr(own_usage, "TENANTS", 10)
    await asyncio.gather(*(desk.own.of(f"t{n}", 1) for n in range(40)))
    assert len(desk.table.asked) == 40
    assert desk.table.most_at_once == own_usage.AT_ONCE
    assert len(desk.own._answers) == 10
    assert not desk.own._asking


async def test_a_store_that_is_down_is_a_503_and_is_left_alone_for_a_moment(desk):
    desk.table.broken = True
    for _ in range(20):
        with pytest.raises(UnavailableError) as caught:
            await desk.own.of("t1", 1)
        assert (caught.value.code, caught.value.retry_after) == ("usage_unavailable", DOWN_S)
    assert len(desk.table.asked) == 1
    desk.table.broken = False
    desk.now += DOWN_S
    assert await desk.own.of("t1", 1) is NOTHING


async def test_a_store_that_says_nothing_is_a_503_too(desk, monkeypatch):
    monkeypatch.setattr(own_usage, "PATIENCE_S", 0.01)
    desk.table.open.clear()
    for tenant in ("t1", "t2", "t3"):
        desk.now += DOWN_S
        with pytest.raises(UnavailableError):
            await desk.own.of(tenant, 1)
    async with asyncio.timeout(20):
        while len(desk.own._asking) > own_usage.AT_ONCE:  # those that did not even get to it have given up
            await asyncio.sleep(0)
    desk.table.open.set()
    async with asyncio.timeout(20):
        while desk.own._asking:
            await asyncio.sleep(0)
    desk.now += DOWN_S
    assert await desk.own.of("t3", 1) is NOTHING


def group(day, charged, model=None, **more):
    return Group(
        requests=1,
        failed=0,
        prompt=7,
        cached=2,
        charged=charged,
        day=date(2026, *day),
        model=model,
        device_seconds=0.5,
        **more,
    )


def test_what_is_shown():
    by_day = Page((group((3, 2), 5), group((3, 1), 6), group((2, 1), 7)), None)
    by_model = Page((group((3, 2), 5, "m"), group((3, 1), 2, "n"), group((3, 1), 4, "m")), None)
    body = shown(Principal("t1", "acme", "k1", "Europe/Berlin"), TODAY, by_day, by_model)
    assert (body["object"], body["tenant"], body["time_zone"], body["complete"]) == (
        "usage",
        {"id": "t1", "name": "acme"},
        "Europe/Berlin",
        True,
    )
    assert body["today"] == {
        "date": TODAY, "requests": 1, "failed_requests": 0, "prompt_tokens": 7, "cached_tokens": 2,
        "completion_tokens": 5, "total_tokens": 12, "device_seconds": 0.5,
    }  # fmt: skip
    assert (body["month"]["month"], body["month"]["total_tokens"], body["month"]["requests"]) == ("2026-03", 25, 2)
    assert [(day["date"], [one["model"] for one in day["models"]]) for day in body["days"]] == [
        (TODAY, ["m"]),
        (date(2026, 3, 1), ["n", "m"]),
        (date(2026, 2, 1), []),
    ]


def test_a_month_may_be_longer_than_what_is_listed_and_a_day_without_usage_is_nothing():
    today = date(2026, 3, 31)
    body = shown(Principal("t1", "acme", "k1"), today, Page((group((3, 1), 6),), None), Page((), ("x",)))
    assert body["days"] == []
    assert body["month"]["completion_tokens"] == 6
    assert body["today"]["requests"] == Sums().requests == 0
    assert not body["complete"]
