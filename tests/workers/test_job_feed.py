"""What an old job still says must not land in a new stream of the same number."""

import asyncio

from shared.protocol import SendFrame, Start, WorkerEnd
from shared.wire import Accept, Job, Text
from workers.engines.base import Delta
from workers.job import Feed


def job(gep: str) -> Job:
    return Job(
        gep=gep, sid=1, aid=f"{gep}.0.0", tenant="t", model="m", version="1", kind="text", input="", deadline_ms=1000
    )


def texts(end: WorkerEnd, now: float) -> list[str]:
    end.flush(now)
    return [
        event.text
        for instruction in end.instructions()
        if isinstance(instruction, SendFrame)
        for event in instruction.frame.events
        if isinstance(event, Text)
    ]


async def two_epochs(*, close: bool) -> list[str]:
    """A gateway starts anew under a running stream and counts from one again; the old job speaks once more."""
    now = asyncio.get_running_loop().time()  # the clock that a feed reads
    end = WorkerEnd("w", "wep")
    feeds = []
    for gep in ("old", "new"):
        end.job(now, "g", job(gep), f"reply {gep}")
        assert any(isinstance(instruction, Start) for instruction in end.instructions())
        feeds.append(Feed(end, "g", 1, lambda: None))
        if gep == "new" and close:
            feeds[0].close()  # as the node does at a final abort
        feeds[-1].answer(Accept(wep="wep", sid=1, prompt_tokens=1))
    feeds[0].event(Delta("of the old one", (1,)))
    feeds[1].event(Delta("of the new one", (2,)))
    return texts(end, now + 0.5)


async def test_a_closed_feed_is_silent() -> None:
    assert await two_epochs(close=True) == ["of the new one"]


async def test_the_control_without_closing_mixes_the_two() -> None:
    assert await two_epochs(close=False) == ["of the old one", "of the new one"]
