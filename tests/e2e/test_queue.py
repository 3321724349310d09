"""The waiting line: whose turn it is, how long it may get, how long one may stand in it, and how much a tenant holds."""

import asyncio
from collections import Counter

import pytest

from tests.e2e.clients import Call, chat, idle, second_tenant, watching
from tests.e2e.stack import running

pytestmark = pytest.mark.timeout(180)

SLOTS = 4
SLOW = {"WORKERS__0__ENGINE": "null", "WORKERS__0__NULL_MODE": "pace", "WORKERS__0__NULL_RATE": "0.05"}
QUEUE_S = 6


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    with running(tmp_path_factory.mktemp("queue-llama"), WORKERS__0__SLOTS=str(SLOTS)) as stack:
        yield stack


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """One slot that nobody ever leaves, and a short line before it: three per tenant, five in all, six seconds."""
    with running(
        tmp_path_factory.mktemp("queue-narrow"),
        **SLOW,
        WORKERS__0__SLOTS="1",
        LIMITS__QUEUE_PER_TENANT="3",
        LIMITS__QUEUE_TOTAL="5",
        LIMITS__QUEUE_S=str(QUEUE_S),
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """More slots than the demo tenant's 32 streams."""
    with running(tmp_path_factory.mktemp("queue-wide"), **SLOW, WORKERS__0__SLOTS="64") as stack:
        yield stack


async def refusal(call: Call) -> tuple[int, str, str]:
    """Status, type and code of an error answer."""
    error = (await call.body())["error"]
    return call.status, error["type"], error["code"]


def retry_after(call: Call) -> int:
    """The header, which must be whole seconds, at least one."""
    text = call.headers["retry-after"]
    assert text.isdecimal(), text
    assert int(text) >= 1
    return int(text)


async def test_sixteen_streams_on_four_slots_start_in_order_of_arrival(llama):
    """Each is sent when the gateway has the one before, so the order of arrival is known.

    Turns are given in that order exactly. What a client can see are its status line (a worker accepted) and its first
    token, and between turn and sight up to four requests prefill side by side and may pass each other. So: nobody may
    start before someone who came `SLOTS` or more places earlier, and the four slots are filled by the first four.
    Were the line a stack, or without order, the last to come would be among the first served.
    """
    async with watching(llama) as watch:
        calls = []
        for number in range(16):
            calls.append(await Call.post(llama, chat(f"Tell me about the number {number}.", max_tokens=24)))
            await watch.reach("arrived", lambda seen, n=number: opened(seen) + seen["evenflow_queue_length"] > n)
        assert (await watch.metrics())["evenflow_queue_length"] > 0, "nobody ever had to wait"
        await asyncio.gather(*(call.finish() for call in calls))
        assert all(call.done for call in calls), [call.error for call in calls]
        for seen_at in ("status_at", "first_at"):
            order = sorted(range(16), key=lambda n: getattr(calls[n], seen_at))
            print(f"\norder by {seen_at}: {order}")
            for place, number in enumerate(order):
                passed = [other for other in order[place + 1 :] if other <= number - SLOTS]
                assert not passed, f"{number} started before {passed}, by {seen_at}: {order}"
        assert set(sorted(range(16), key=lambda n: calls[n].status_at)[:SLOTS]) == set(range(SLOTS))
        await watch.reach("idle", idle)


def opened(seen):
    return seen["evenflow_protocol_opened_total"]


async def test_the_line_is_bounded_per_tenant_and_in_all_and_in_time(narrow):
    async with watching(narrow) as watch:
        other = await second_tenant(narrow, watch, "other", max_streams=32)
        holder = await Call.post(narrow, chat("x", model="null"))
        assert await holder.head() == 200

        async def wait_in_line(count: int, key: str = "") -> list[Call]:
            before = (await watch.metrics())["evenflow_queue_length"]
            calls = [await Call.post(narrow, chat("x", model="null"), key=key) for _ in range(count)]
            await watch.reach("in the line", lambda seen: seen["evenflow_queue_length"] == before + count)
            return calls

        mine = await wait_in_line(3)
        fourth = await Call.post(narrow, chat("x", model="null"))
        assert await refusal(fourth) == (429, "rate_limit_error", "queue_full")
        assert retry_after(fourth)
        assert fourth.headers["x-should-retry"] == "true"

        theirs = await wait_in_line(2, other)
        sixth = await Call.post(narrow, chat("x", model="null"), key=other)
        assert await refusal(sixth) == (503, "service_unavailable", "overloaded")
        assert retry_after(sixth)

        loop = asyncio.get_running_loop()
        sent = loop.time()
        for call in (*mine, *theirs):
            assert await refusal(call) == (504, "timeout_error", "queue_timeout")
        assert loop.time() - sent < QUEUE_S + 5
        seen = await watch.metrics()
        assert seen["evenflow_queue_length"] == 0
        assert seen["evenflow_streams_held"] == 1, "those whose time was up still hold something"

        waiting = await wait_in_line(1)
        holder.drop()
        assert await waiting[0].head() == 200, "the line did not move on after the time-outs"
        waiting[0].drop()
        await watch.reach("idle", idle)


async def test_of_ten_too_many_released_together_exactly_the_limit_is_let_in(wide):
    """42 connections stand ready and send at once, against the demo tenant's 32; then one at a time."""
    async with watching(wide) as watch:
        for _ in range(3):
            calls = [await Call.connect(wide) for _ in range(42)]
            for call in calls:
                call.send(wide, chat("x", model="null"))
            counts = Counter(await asyncio.gather(*(call.head() for call in calls)))
            assert counts == {200: 32, 429: 10}
            for call in calls:
                if call.status == 429:
                    assert await refusal(call) == (429, "rate_limit_error", "concurrency")
                    assert retry_after(call)
            held = [call for call in calls if call.status == 200]
            one_more = await Call.post(wide, chat("x", model="null"))
            assert await refusal(one_more) == (429, "rate_limit_error", "concurrency")
            held.pop().drop()
            await watch.reach("one given back", lambda seen: seen["evenflow_streams_held"] == 31, within_s=5)
            held.append(await Call.post(wide, chat("x", model="null")))
            assert await held[-1].head() == 200
            for call in held:
                call.drop()
            await watch.reach("idle", idle)
            assert (await watch.metrics())["evenflow_streams_held"] == 0
