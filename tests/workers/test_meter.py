"""Shares of the engine's time, and moving averages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engines.meter import Meter


def test_time_is_shared_by_those_who_are_active():
    meter = Meter()
    first = meter.enter(10.0)
    second = meter.enter(12.0)
    assert meter.leave(second, 16.0) == pytest.approx(2.0)
    assert meter.leave(first, 17.0) == pytest.approx(2.0 + 2.0 + 1.0)
    third = meter.enter(100.0)
    assert meter.leave(third, 101.0) == pytest.approx(1.0)


@given(gaps=st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=30))
def test_shares_add_up_to_the_busy_time(gaps):
    meter, now, marks, busy, total = Meter(), 0.0, [], 0.0, 0.0
    for gap, enter in gaps:
        busy += gap if marks else 0.0
        now += gap
        if enter or not marks:
            marks.append(meter.enter(now))
        else:
            total += meter.leave(marks.pop(0), now)
    total += sum(meter.leave(mark, now) for mark in marks)
    assert total == pytest.approx(busy, abs=1e-6)


def test_latency_by_batch_size():
    meter = Meter()
    for _ in range(3):
        meter.enter(0.0)
    meter.token(0.02)
    assert meter.itl_ms == {4: pytest.approx(20.0)}
    meter.token(0.12)
    assert meter.itl_ms[4] == pytest.approx(30.0)


def test_prefill_speed_ignores_what_came_from_the_cache_entirely():
    meter = Meter()
    meter.prefill(0, 0.0)
    assert meter.prefill_tps == 0.0
    meter.prefill(100, 1.0)
    assert meter.prefill_tps == pytest.approx(100.0)
