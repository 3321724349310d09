"""The restart policy on a clock that only the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.restarts import EX_CONFIG, GiveUp, Restart, RestartPolicy, Restarts, died, started

POLICY = RestartPolicy()


def _fail(state, now, status=1):
    return died(started(state, now), now, status, POLICY)


def test_delays_double_up_to_the_ceiling_and_never_end():
    state, now, delays = Restarts(), 0.0, []
    for _ in range(200):
        state, verdict = _fail(state, now)
        assert isinstance(verdict, Restart)
        delays.append(verdict.after_s)
        now += verdict.after_s
    assert delays[:7] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    assert set(delays[7:]) == {5.0}
    assert state.total == 200


@pytest.mark.parametrize(("lived_s", "expected_s"), [(29.9, 0.8), (30.0, 0.1)])
def test_a_settled_life_wipes_the_slate_and_a_shorter_one_does_not(lived_s, expected_s):
    state = Restarts()
    for now in (0.0, 1.0, 2.0):
        state, _ = _fail(state, now)
    state = started(state, 10.0)
    _, verdict = died(state, 10.0 + lived_s, 1, POLICY)
    assert verdict.after_s == pytest.approx(expected_s)


def test_configuration_errors_are_final_whenever_they_come():
    state = started(Restarts(), 0.0)
    assert died(state, 0.1, EX_CONFIG, POLICY)[1] == GiveUp(status=78)
    assert died(state, 1e6, EX_CONFIG, POLICY)[1] == GiveUp(status=78)


@pytest.mark.parametrize("status", [0, 1, -9, -15, 77, 79, None])
def test_every_other_end_is_restarted(status):
    assert isinstance(died(started(Restarts(), 0.0), 1.0, status, POLICY)[1], Restart)


def test_a_child_that_could_not_be_started_counts_as_a_failure():
    state, verdict = died(Restarts(), 1e9, None, POLICY)
    assert verdict == Restart(after_s=0.1, failures=1)
    assert died(state, 2e9, None, POLICY)[1].after_s == pytest.approx(0.2)


@given(st.lists(st.floats(0, 100), max_size=60))
def test_any_history_stays_within_the_bounds_and_grows_only_by_doubling(lives):
    state, now, before = Restarts(), 0.0, None
    for lived in lives:
        state = started(state, now)
        now += lived
        settled = now - state.started_at >= POLICY.settled_s
        state, verdict = died(state, now, 1, POLICY)
        assert POLICY.first_s <= verdict.after_s <= POLICY.most_s
        if settled:
            assert verdict.after_s == POLICY.first_s
        elif before is not None:
            assert verdict.after_s == min(POLICY.most_s, before * 2)
        before = verdict.after_s
        now += verdict.after_s
