"""What waits for one client."""

import asyncio

import pytest

from gateway.services.inbox import Inbox
from shared.errors import UpstreamError
from shared.wire import Text


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


async def test_bytes_are_counted_until_they_are_taken() -> None:
    inbox = Inbox(1_000, now=0.0)
    grown = inbox.put(0, (text(0, "y" * 500),))
    assert grown > 500
    assert not inbox.full
    inbox.put(0, (text(1, "y" * 500),))
    assert inbox.full
    await inbox.take()
    assert inbox.emptied(7.0) > 1_000
    assert (inbox.pending_bytes, inbox.taken_at, inbox.full) == (0, 7.0, False)
