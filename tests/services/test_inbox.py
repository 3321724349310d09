"""What waits for one client."""

import asyncio

import pytest

from gateway.services.inbox import Inbox
from shared.errors import UpstreamError
from shared.wire import End, Event, Text, Usage


def text(seq: int, content: str = "x") -> Text:
    return Text(1, seq, content, (seq,))


async def test_everything_that_lies_there_comes_in_one_take() -> None:
    inbox = Inbox(10_000, now=0.0)
    inbox.put(0, (text(0), text(1)))
    inbox.put(1, (text(0),))
    assert await inbox.take() == [(0, (text(0), text(1))), (1, (text(0),))]


async def test_a_waiting_reader_wakes() -> None:
    inbox = Inbox(10_000, now=0.0)
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.put(0, (text(0),))
    assert await reader == [(0, (text(0),))]


async def test_what_lies_there_is_delivered_before_the_failure() -> None:
    inbox = Inbox(10_000, now=0.0)
    inbox.put(0, (text(0),))
    inbox.fail(UpstreamError("first"))
    inbox.fail(UpstreamError("second"))
    assert len(await inbox.take()) == 1
    for _ in range(2):
        with pytest.raises(UpstreamError, match="first"):
            await inbox.take()


async def test_ready_waits_for_a_worker_and_raises_what_kept_it_away() -> None:
    inbox = Inbox(10_000, now=0.0)
    waiting = asyncio.create_task(inbox.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    inbox.accepted()
    await waiting
    refused = Inbox(10_000, now=0.0)
    refused.fail(UpstreamError("no"))
    with pytest.raises(UpstreamError):
        await refused.ready()


async def test_a_nudge_wakes_a_waiting_reader_with_nothing_and_never_hides_an_event() -> None:
    inbox = Inbox(10_000, now=0.0)
    inbox.nudge()  # nobody waits: nothing to do
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.nudge()
    assert await reader == []
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.nudge()
    inbox.put(0, (text(0),))
    assert await reader == [(0, (text(0),))]


async def test_bytes_count_until_the_socket_has_taken_them() -> None:
    inbox = Inbox(1_000, now=0.0)
    grown = inbox.put(0, (text(0, "y" * 500),))
    assert grown > 500
    assert not inbox.full
    grown += inbox.put(0, (text(1, "y" * 500),))
    assert inbox.full
    await inbox.take()
    assert inbox.full, "taken by the relay is not taken by the client"
    more = inbox.put(0, (text(2),))  # comes while the socket is full
    assert inbox.emptied() == grown
    assert (inbox.pending_bytes, inbox.full) == (more, False)


async def test_stuck_is_something_lying_there_and_nothing_moving() -> None:
    inbox = Inbox(1_000, now=0.0)
    inbox.look(5.0)
    assert (inbox.stuck_since, inbox.quiet_since) == (5.0, 0.0), "nothing lies here: quiet, not stuck"
    inbox.put(0, (text(0),))
    inbox.look(6.0)
    assert inbox.stuck_since == 5.0
    await inbox.take()
    inbox.look(9.0)
    assert inbox.stuck_since == 5.0, "given to the relay, but the client's socket has not taken it"
    inbox.emptied()
    inbox.look(10.0)
    assert (inbox.stuck_since, inbox.quiet_since) == (10.0, 10.0)


async def test_events_go_straight_only_while_the_reader_waits_and_nothing_lies_before_them() -> None:
    inbox, straight = Inbox(10_000, now=0.0), []

    def take(choice: int, events: tuple[Event, ...]) -> bool:
        if type(events[-1]) is Text:
            straight.append((choice, events))
            return True
        return False

    inbox.straight = take
    assert inbox.put(0, (text(0),)) > 0, "nobody waits yet: it lies here"
    assert straight == []
    assert len(await inbox.take()) == 1
    inbox.emptied()
    inbox.look(1.0)
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert inbox.put(1, (text(1),)) == 0
    assert straight == [(1, (text(1),))]
    assert not reader.done()
    inbox.look(2.0)
    assert inbox.quiet_since == 2.0, "what goes straight is a sign of life, too"
    end = End(1, 2, "stop", Usage())
    assert inbox.put(0, (end,)) > 0, "it was not taken"
    assert inbox.put(0, (text(3),)) > 0, "it may not overtake what lies here"
    assert await reader == [(0, (end,)), (0, (text(3),))]
    assert len(straight) == 1


async def test_what_goes_wrong_on_the_straight_way_reaches_the_reader_and_not_the_bus() -> None:
    inbox = Inbox(10_000, now=0.0)

    def broken(_choice: int, _events: tuple[Event, ...]) -> bool:
        raise UpstreamError("broken")

    inbox.straight = broken
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert inbox.put(0, (text(0),)) == 0
    with pytest.raises(UpstreamError, match="broken"):
        await reader


async def test_what_nobody_has_taken_can_be_let_go_and_what_the_reader_has_is_its_own() -> None:
    inbox = Inbox(10_000, now=0.0)
    first = inbox.put(0, (text(0, "y" * 500),))
    await inbox.take()
    second = inbox.put(0, (text(1, "y" * 700),))
    assert (inbox.waiting_bytes, inbox.drop(), inbox.waiting_bytes) == (second, second, 0)
    assert (inbox.emptied(), inbox.pending_bytes) == (first, 0)
