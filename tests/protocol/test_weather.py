"""A network that is merely bad fails nobody: as long as both processes live, every answer arrives whole."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.protocol import Timing
from tests.protocol.sim import QUIET, World

PROVE = os.environ.get("EVENFLOW_PROVE") == "1"
TIMINGS = (Timing(), Timing(window_frames=8, window_bytes=2000, frame_bytes=300, credit_frames=4))
HARMLESS = {"stop", "busy", "unanswered", "cancelled", "cancel_unanswered"}

act = st.one_of(
    st.tuples(st.just("open"), st.sampled_from([-1, 0, 3, 40, 150])),
    st.tuples(st.just("wait"), st.sampled_from([0.003, 0.05, 0.3, 1.0])),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("lose"), st.sampled_from(["frame", "credit", "cancel", "reply"])),
    st.tuples(st.just("stall"), st.sampled_from(["g1", "w1"])),
)


@pytest.mark.timeout(1800 if PROVE else 120)
@settings(
    max_examples=3000 if PROVE else 200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)  # fmt: skip
@given(
    seed=st.integers(0, 2**32),
    timing=st.sampled_from(TIMINGS),
    weather=st.tuples(
        st.sampled_from([0.0, 0.03, 0.1]), st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 0.02, 0.15])
    ),
    acts=st.lists(act, min_size=5, max_size=30),
)
def test_bad_weather_fails_nobody(seed, timing, weather, acts):
    world = World(timing=timing, seed=seed)
    world.loss, world.twice, world.delay = weather
    world.decide_delay = world.delay
    cancelled = set()
    for what, arg in acts:
        match what:
            case "open":
                world.gateway.open("w1", arg)
            case "wait":
                world.run(arg)
            case "cancel" if world.history:
                cancelled.add(world.history[arg % len(world.history)].sid)
                world.gateway.cancel(world.history[arg % len(world.history)].sid)
            case "lose":  # for a moment, everything of one kind
                world.drop = lambda kind, *_, lost=arg: kind == lost
                world.run(0.25)
                world.drop = lambda *_: False
            case "stall":
                node = world.gateway if arg == "g1" else world.workers["w1"]
                node.frozen = True
                world.run(0.7)
                node.thaw()
    world.run(QUIET + 10)
    for record in world.history:
        assert record.code in HARMLESS, f"stream {record.sid} ended as {record.conclusion}"
        assert record.sid in cancelled or not record.code.startswith("cancel")
    world.check_quiet()
