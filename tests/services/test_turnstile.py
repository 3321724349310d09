"""Waiting for a turn: order, bounds, deadlines, and slots that never leak."""

import asyncio

import pytest

from gateway.core.fleet import Fleet
from gateway.services.turnstile import Turnstile
from shared.errors import DeadlineError, RateLimitError, UnavailableError
from shared.settings import LimitSettings
from shared.wire import Ann, Slots, Version

POOL = ("m", "1")


def fleet(slots: int) -> Fleet:
    made = Fleet()
    version = Version(model="m", version="1", digest="", context=8, max_output=8, vocab_hash="")
    made.announced(
        asyncio.get_running_loop().time(),
        "w",
        Ann(wep="e", n=1, state="ready", versions=(version,), slots=Slots(total=slots, free=slots)),
    )
    return made


def limits(**changes: float) -> LimitSettings:
    return LimitSettings(**changes)  # type: ignore[arg-type]


async def asking(turnstile: Turnstile, tenant: str = "t") -> "asyncio.Task[str]":
    ticket = turnstile.ticket(POOL, tenant, asyncio.get_running_loop().time())
    task = asyncio.create_task(turnstile.turn(ticket))
    await asyncio.sleep(0)
    return task


async def test_turns_come_in_order_as_slots_free() -> None:
    workers = fleet(2)
    turnstile = Turnstile(workers, limits())
    tasks = [await asking(turnstile) for _ in range(4)]
    assert [task.done() for task in tasks] == [True, True, False, False]
    workers.give("w", "e")
    turnstile.look()
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True, True, True, False]
    tasks[3].cancel()
    await asyncio.gather(tasks[3], return_exceptions=True)
    assert len(turnstile.line) == 0


async def test_one_who_leaves_in_the_moment_of_the_turn_gives_it_to_the_next() -> None:
    workers = fleet(1)
    turnstile = Turnstile(workers, limits())
    first, second, third = [await asking(turnstile) for _ in range(3)]
    await first
    workers.give("w", "e")
    turnstile.look()  # the second's future is resolved, but its task has not run yet
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert await asyncio.wait_for(third, 1) == "w"
    assert workers.workers["w"].ours == 1


async def test_full_lines_refuse_with_an_honest_wait() -> None:
    turnstile = Turnstile(fleet(0), limits(queue_per_tenant=1, queue_total=2))
    waiting = [await asking(turnstile, "a")]
    with pytest.raises(RateLimitError) as tenant:
        await (await asking(turnstile, "a"))
    assert tenant.value.code == "queue_full"
    assert tenant.value.retry_after is not None
    waiting.append(await asking(turnstile, "b"))
    with pytest.raises(UnavailableError) as total:
        await (await asking(turnstile, "c"))
    assert total.value.code == "overloaded"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_queue_deadline_says_whether_anybody_could_have_served() -> None:
    busy = Turnstile(fleet(0), limits(queue_s=0.01))
    with pytest.raises(DeadlineError):
        await (await asking(busy))
    nobody = Turnstile(Fleet(), limits(queue_s=0.01))
    with pytest.raises(UnavailableError) as error:
        await (await asking(nobody))
    assert error.value.code == "no_worker"
    assert len(nobody.line) == 0


async def test_a_worker_that_never_answered_is_asked_again_only_when_nobody_else_can() -> None:
    turnstile = Turnstile(fleet(1), limits())
    ticket = turnstile.ticket(POOL, "t", asyncio.get_running_loop().time())
    ticket.avoid = frozenset({"w"})
    assert await asyncio.wait_for(turnstile.turn(ticket, again=True), 1) == "w"
