"""Both ends against each other under anything that can happen. EVENFLOW_PROVE=1 looks much harder."""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.protocol import Timing
from tests.protocol.sim import World

PROVE = os.environ.get("EVENFLOW_PROVE") == "1"
ENDLESS = 1_000_000
WORKERS = ("w1", "w2")
NODES = ("g1", *WORKERS)
# The narrow window is full most of the time.
TIMINGS = (Timing(), Timing(window_frames=8, window_bytes=2000, frame_bytes=300, credit_frames=4))


class BothEnds(RuleBasedStateMachine):
    """Teardown mends everything and checks that exactly one terminal came, and that nothing is left anywhere."""

    @initialize(seed=st.integers(0, 2**32), decide=st.sampled_from([0.0, 0.1, 0.4]), timing=st.sampled_from(TIMINGS))
    def build(self, seed, decide, timing):
        self.world = World(len(WORKERS), timing=timing, seed=seed)
        self.world.decide_delay = decide

    def node(self, name):
        return self.world.gateway if name == "g1" else self.world.workers[name]

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.1, 0.35, 1.1, 2.6, 3.2, 11.0]))
    def wait(self, seconds):
        self.world.run(seconds)

    @precondition(lambda self: self.world.gateway.alive and not self.world.gateway.frozen)
    @rule(wid=st.sampled_from(WORKERS), tokens=st.sampled_from([-1, 0, 1, 5, 40, 150, ENDLESS]), many=st.integers(1, 4))
    def open(self, wid, tokens, many):
        for _ in range(many):
            self.world.gateway.open(wid, tokens)

    @precondition(lambda self: self.world.gateway.alive and not self.world.gateway.frozen)
    @rule(pick=st.integers(0, 50))
    def cancel(self, pick):
        records = self.world.gateway.records
        if records:
            self.world.gateway.cancel(1 + pick % len(records))

    @rule(
        loss=st.sampled_from([0.0, 0.02, 0.2, 0.5]),
        twice=st.sampled_from([0.0, 0.1]),
        delay=st.sampled_from([0.0, 0.01, 0.1, 0.4]),
    )
    def weather(self, loss, twice, delay):
        self.world.loss, self.world.twice, self.world.delay = loss, twice, delay

    @rule(kind=st.sampled_from(["frame", "credit", "cancel", "job", "reply", "ann"]), lose=st.booleans())
    def one_kind_fails(self, kind, lose):
        self.world.drop = (lambda k, *_: k == kind) if lose else (lambda *_: False)

    @rule(name=st.sampled_from(NODES))
    def kill(self, name):
        self.node(name).kill()

    @rule(name=st.sampled_from(NODES))
    def restart(self, name):
        self.node(name).start()

    @rule(name=st.sampled_from(NODES))
    def freeze(self, name):
        self.node(name).frozen = True

    @rule(name=st.sampled_from(NODES))
    def thaw(self, name):
        self.node(name).thaw()

    @rule(name=st.sampled_from(NODES))
    def cut(self, name):
        self.node(name).cut()

    @rule(name=st.sampled_from(NODES))
    def join(self, name):
        self.node(name).join()

    @invariant()
    def bounded(self):
        if not hasattr(self, "world"):
            return
        for peer in self.world.gateway.end._peers.values():
            assert peer.arrivals.scattered <= 64 * 512
            assert len(peer.strays) <= 1024
            assert len(peer.ended) <= 4096
        for worker in self.world.workers.values():
            for box in worker.end._boxes.values():
                assert len(box._in_flight) <= self.world.timing.window_frames
                assert box._weight <= self.world.timing.window_bytes
                assert len(box.tombs) <= self.world.timing.tombstones

    def teardown(self):
        if hasattr(self, "world"):
            self.world.settle()


BothEnds.TestCase.settings = settings(
    max_examples=3000 if PROVE else 60,
    stateful_step_count=40 if PROVE else 25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestBothEnds = pytest.mark.timeout(1800 if PROVE else 120)(BothEnds.TestCase)
