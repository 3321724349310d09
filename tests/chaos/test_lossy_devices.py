"""Each safety device of the protocol on a real bus, and what happens without it.

The scenarios are those of `tests/protocol/test_safety.py`. Here a proxy loses the real messages between the real shells.
"""

from contextlib import asynccontextmanager

import pytest

from shared import wire
from shared.protocol import Timing
from tests.chaos.load import WHOLE, Load, null_text
from tests.chaos.lossy_stack import lossy
from tests.e2e.clients import Call, chat, eventually

RATE = 50.0
TOKENS = 60

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:.*deprecated inferred style")]

_FRAME = wire.decoder(wire.Frame)


@asynccontextmanager
async def under(tmp_path, timing):
    """A stack with these devices; they are all on again when it ends, so that nothing keeps it from ending."""
    async with lossy(tmp_path, timing=timing, null_rate=RATE) as stack:
        try:
            yield stack
        finally:
            for end in (stack.house.streams.end, stack.node.end):
                end.timing = Timing()
            for door in stack.doors.values():
                door.meddle = None
            for call in Call.all:
                call.drop()
            Call.all.clear()
            await eventually(nothing_left(stack), "all given back")


def nothing_left(stack):
    async def holds():
        return not stack.leftovers()

    return holds


async def until(holds, what):
    async def looked():
        return holds()

    await eventually(looked, what)


def lose(stack, which):
    """Lose the frames for whose events `which` is True, as they leave the worker; returns the list of those lost."""
    lost = []

    def meddle(way, kind, piece):
        if way == "up" and kind == "frame" and which(_FRAME.decode(piece.payload).events, lost):
            lost.append(piece)
            return True
        return False

    stack.doors["w1"].meddle = meddle
    return lost


def over(events):
    """A terminal is among them."""
    return any(isinstance(event, wire.End | wire.Fail) for event in events)


async def answer(stack):
    """One answer to its end: how it ended, and whether its text is what the engine said."""
    one = await Load(stack, "null", 0, 0, 0).ask(TOKENS, stream=True)
    whole = await null_text(one.rid, TOKENS)
    assert whole.startswith(one.text), "a gap, or something twice"
    return one.end, one.text == whole


# ------------------------------------------------------------------------------------------------------------- replay


async def a_frame_is_lost(stack):
    lost = lose(stack, lambda events, lost: not lost and not over(events) and any(event.seq > 10 for event in events))
    ended = await answer(stack)
    while not lost:  # a machine that slept in between sent all the rest in one frame
        ended = await answer(stack)
    return ended


async def test_replay_fills_the_hole(tmp_path):
    async with under(tmp_path, Timing()) as stack:
        assert await a_frame_is_lost(stack) == (WHOLE, True)
        assert stack.node.end.counters.replays


async def test_without_replay_the_answer_is_cut_short(tmp_path):
    async with under(tmp_path, Timing(replay=False)) as stack:
        assert await a_frame_is_lost(stack) == ("worker_failed", False)


# --------------------------------------------------------------------------------------------------------- tail timer


def lose_the_tail(stack):
    """Everything after the fortieth event, until the end of the answer was lost, too."""
    return lose(
        stack,
        lambda events, lost: (
            not (lost and over(_FRAME.decode(lost[-1].payload).events)) and any(event.seq > 40 for event in events)
        ),
    )


async def test_tail_timer_notices_that_the_end_is_missing(tmp_path):
    async with under(tmp_path, Timing()) as stack:
        lost = lose_the_tail(stack)
        assert await answer(stack) == (WHOLE, True)
        assert lost
        assert stack.tails


async def test_without_the_tail_timer_the_client_waits_for_ever(tmp_path):
    async with under(tmp_path, Timing(tail_timer=False)) as stack:
        lost = lose_the_tail(stack)
        await Call.post(stack, chat("x", model="null", max_tokens=TOKENS))
        await until(lambda: lost and over(_FRAME.decode(lost[-1].payload).events), "the end is lost")
        credits_then = stack.house.streams.end.counters.credits
        await until(lambda: stack.house.streams.end.counters.credits > credits_then + 5, "a second more")
        assert stack.house.streams.end.counters.resumes == 0
        assert stack.house.streams.end.open_count() == 1
        assert stack.node.end.unacked_count() == 1


# ---------------------------------------------------------------------------------------------------------- tombstone


async def a_cancel_overtakes_its_job(stack):
    """The client leaves at once; its job is still on its way when its cancel arrives."""
    door, held = stack.doors["g1"], []

    def hold(way, kind, piece):
        if way == "up" and kind == "job":
            held.append(piece)
            return True
        return False

    door.meddle = hold
    call = await Call.post(stack, chat("x", model="null", max_tokens=1000))
    await until(lambda: held, "the job is on its way")
    call.drop(reset=True)
    await until(lambda: stack.node.end.counters.cancels, "the cancel has come")
    door.inject(held[0])


async def test_tombstone_refuses_a_job_that_was_cancelled_before_it_came(tmp_path):
    async with under(tmp_path, Timing()) as stack:
        await a_cancel_overtakes_its_job(stack)
        await until(lambda: stack.node.end.counters.tombstone_refusals, "the job is refused")
        assert stack.node.end.counters.jobs == 0


async def test_without_the_tombstone_a_cancelled_job_runs(tmp_path):
    async with under(tmp_path, Timing(tombstone_on=False)) as stack:
        await a_cancel_overtakes_its_job(stack)
        await until(lambda: stack.node.end.counters.jobs == 1, "the job runs")
        assert stack.node.end.counters.tombstone_refusals == 0


# --------------------------------------------------------------------------------------------- acknowledged terminals


async def the_terminal_is_lost(stack):
    lost = lose(stack, lambda events, lost: not lost and over(events))
    ended = await answer(stack)
    assert lost
    return ended


async def test_terminal_waits_for_its_acknowledgement(tmp_path):
    async with under(tmp_path, Timing()) as stack:
        assert await the_terminal_is_lost(stack) == (WHOLE, True)
        await until(lambda: not stack.node.end.unacked_count(), "acknowledged")
        assert stack.node.end.counters.terminals_expired == 0


async def test_without_terminal_acknowledgement_a_finished_answer_fails(tmp_path):
    async with under(tmp_path, Timing(terminal_ack=False)) as stack:
        assert (await the_terminal_is_lost(stack))[0] == "worker_failed"


# -------------------------------------------------------------------------------------------------------------- lease


async def every_cancel_is_lost(stack):
    """A client leaves while another streams on (so credits go on); no cancel ever reaches the worker."""
    stack.doors["g1"].meddle = lambda way, kind, _piece: way == "up" and kind == "cancel"
    stays = await Call.post(stack, chat("stays", model="null", max_tokens=1000))
    goes = await Call.post(stack, chat("goes", model="null", max_tokens=1000))
    await stays.take(3)
    await goes.take(3)
    goes.drop(reset=True)
    await until(lambda: stack.house.streams.end.counters.cancels_unanswered, "the gateway has given it up")
    await stays.take(3)


async def test_lease_stops_what_nobody_wants(tmp_path):
    async with under(tmp_path, Timing()) as stack:
        await every_cancel_is_lost(stack)
        await until(lambda: stack.node.end.counters.lease_aborts == 1, "the lease has run out")
        await until(lambda: stack.node.engine.stats().decode == 1, "only the wanted one runs on")


async def test_without_the_lease_it_runs_on(tmp_path):
    async with under(tmp_path, Timing(lease_on=False)) as stack:
        await every_cancel_is_lost(stack)
        assert stack.node.end.counters.lease_aborts == 0
        assert stack.node.engine.stats().decode == 2
