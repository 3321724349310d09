"""Each safety device, and what happens without it: the same scenario with the switch off must break the property."""

import pytest

from shared.protocol import Timing
from tests.protocol.sim import QUIET, World

FOREVER = 1_000_000


def lose(kind, numbers):
    """A `drop` that loses the messages of one kind with these ordinal numbers (from 1)."""
    seen = 0

    def drop(k, *_):
        nonlocal seen
        seen += k == kind
        return k == kind and seen in numbers

    return drop


def a_frame_is_lost(timing):
    """A frame from the middle of an answer never arrives."""
    world = World(timing=timing)
    world.drop = lose("frame", {5})
    world.gateway.open("w1", 30)
    world.run(QUIET)
    return world.history[0]


def test_replay_fills_the_hole():
    record = a_frame_is_lost(Timing())
    assert record.code == "stop"
    record.check()


def test_without_replay_the_answer_is_cut_short():
    assert a_frame_is_lost(Timing(replay=False)).code != "stop"


def the_tail_is_lost(timing):
    """The last frames never arrive, and no later one shows that anything is missing."""
    world = World(timing=timing)
    world.drop = lose("frame", {11, 12, 13})
    world.gateway.open("w1", 10)
    world.run(1.5)
    return world.history[0]


def test_tail_timer_notices_that_the_end_is_missing():
    record = the_tail_is_lost(Timing())
    assert record.code == "stop"
    record.check()


def test_without_the_tail_timer_the_client_waits_for_ever():
    assert the_tail_is_lost(Timing(tail_timer=False)).code == ""


def a_cancel_overtakes_its_job(timing):
    """The client leaves at once; the job is still on its way when its cancel arrives."""
    world = World(timing=timing)
    held = []
    worker = world.workers["w1"]
    receive = worker.end.job
    worker.end.job = lambda *args: held.append(args)
    sid = world.gateway.open("w1", FOREVER)
    world.run(0.01)
    world.gateway.cancel(sid)
    world.run(0.1)
    assert held
    for now, *rest in held:
        receive(max(now, world.now), *rest)
    worker.obey()
    return world


def test_tombstone_refuses_a_job_that_was_cancelled_before_it_came():
    world = a_cancel_overtakes_its_job(Timing())
    assert not world.workers["w1"].starts
    assert world.history[0].code == "cancelled"


def test_without_the_tombstone_a_cancelled_job_runs():
    assert a_cancel_overtakes_its_job(Timing(tombstone_on=False)).workers["w1"].starts


def the_terminal_is_lost(timing):
    """The frame with the end of the answer never arrives."""
    world = World(timing=timing)
    world.drop = lose("frame", {12})
    world.gateway.open("w1", 10)
    world.run(QUIET)
    return world


def test_terminal_waits_for_its_acknowledgement():
    world = the_terminal_is_lost(Timing())
    assert world.history[0].code == "stop"
    assert world.workers["w1"].end.unacked_count() == 0


def test_without_terminal_acknowledgement_a_finished_answer_fails():
    assert the_terminal_is_lost(Timing(terminal_ack=False)).history[0].code == "stream_gone"


def every_cancel_is_lost(timing):
    """A client leaves while another streams on (so credits go on); no cancel ever reaches the worker."""
    world = World(timing=timing)
    world.gateway.open("w1", FOREVER)
    gone = world.gateway.open("w1", FOREVER)
    world.run(0.5)
    world.drop = lambda kind, *_: kind == "cancel"
    world.gateway.cancel(gone)
    world.run(5.0)
    return [sid for _, sid in world.workers["w1"].engine], gone


def test_lease_stops_what_nobody_wants():
    running, gone = every_cancel_is_lost(Timing())
    assert gone not in running
    assert len(running) == 1


def test_without_the_lease_it_runs_for_ever():
    running, gone = every_cancel_is_lost(Timing(lease_on=False))
    assert gone in running


@pytest.mark.parametrize("device", ["replay", "tail_timer", "tombstone_on", "terminal_ack", "lease_on"])
def test_all_devices_are_on_in_service(device):
    assert getattr(Timing(), device) is True
