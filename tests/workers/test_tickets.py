"""Seats, the line for them, and interrupts."""

import asyncio

import pytest

from shared.errors import EngineError
from shared.wire import Timings, Usage
from workers.engines.base import EngineRequest
from workers.engines.tickets import Desk


def request(name, **more):
    return EngineRequest(id=name, prompt=(1,), max_tokens=1, **more)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_come_first_served_and_nobody_slips_in():
    desk = Desk(1)
    tickets = {name: desk.enter(request(name)) for name in "abc"}
    order = []

    async def sit(name):
        if await desk.seat(tickets[name]):
            order.append(name)

    tasks = [asyncio.ensure_future(sit(name)) for name in "abc"]
    await settle()
    assert order == ["a"]
    assert (desk.running, desk.waiting, desk.free) == (1, 2, 0)
    desk.leave(tickets["a"])
    late = desk.enter(request("d"))
    tasks.append(asyncio.ensure_future(desk.seat(late)))
    await settle()
    assert order == ["a", "b"]
    desk.vacate(tickets["b"])
    desk.leave(tickets["b"])
    desk.leave(tickets["b"])
    await settle()
    assert order == ["a", "b", "c"]
    desk.leave(tickets["c"])
    assert await tasks[-1]
    desk.leave(late)
    assert (desk.running, desk.waiting, desk.free) == (0, 0, 1)


@pytest.mark.parametrize("why", ["cancelled", "unloaded", "deadline"])
async def test_an_interrupt_reaches_those_in_line(why):
    desk = Desk(1)
    first, second, third = (desk.enter(request(name)) for name in "abc")
    assert await desk.seat(first)
    waiting = [asyncio.ensure_future(desk.seat(ticket)) for ticket in (second, third)]
    await settle()
    second.stop(why)
    assert await waiting[0] is False
    desk.leave(second)
    desk.leave(first)
    assert await waiting[1] is True
    end = second.verdict(Usage(), Timings())
    if why == "cancelled":
        assert end.reason == why
    else:
        assert (end.code, end.retryable) == (why, why == "unloaded")
    desk.leave(third)


async def test_the_first_interrupt_counts_and_cancel_is_idempotent():
    desk = Desk(1)
    ticket = desk.enter(request("a"))
    woken = []
    ticket.wake = lambda: woken.append(1)
    assert desk.cancel("a")
    assert not desk.cancel("a")
    desk.stop_all("unloaded")
    assert (ticket.interrupt, woken) == ("cancelled", [1])
    assert not desk.cancel("nobody")
    assert not await desk.seat(ticket)
    desk.leave(ticket)


async def test_an_id_is_used_once_at_a_time():
    desk = Desk(1)
    ticket = desk.enter(request("a"))
    with pytest.raises(EngineError, match="already"):
        desk.enter(request("a"))
    desk.leave(ticket)
    desk.leave(desk.enter(request("a")))


async def test_a_deadline_stops_by_itself_and_not_after_the_end():
    desk = Desk(1)
    ticket, ended = desk.enter(request("a", deadline=0.0)), desk.enter(request("b", deadline=0.0))
    desk.leave(ended)
    while ticket.interrupt is None:
        await asyncio.sleep(0)
    assert (ticket.interrupt, ended.interrupt) == ("deadline", None)
    desk.leave(ticket)


async def test_drained_waits_for_the_last_and_no_longer_than_asked():
    desk = Desk(2)
    assert await desk.drained(0)
    ticket = desk.enter(request("a"))
    assert not await desk.drained(0)
    waiting = asyncio.ensure_future(desk.drained(30))
    await settle()
    assert not waiting.done()
    desk.leave(ticket)
    assert await waiting
