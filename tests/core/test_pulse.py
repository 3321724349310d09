"""Series of the last 15 minutes: what is in them, what is a gap, and how much of it is kept."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.pulse import SECONDS, Figures, Pulse, Tally, Track, per_second, percentile, thinned


def test_a_track_says_what_was_put_and_where_nobody_looked():
    track = Track()
    track.put(10, 1)
    track.put(13, 4)
    track.put(12, 9)  # too late: it stays a gap
    assert track.series(14)[-6:] == [None, 1, None, None, 4, None]
    assert len(track.series(14)) == SECONDS
    assert track.recent(14, 5) == [1, 4]
    assert per_second(track, 13, 1) == 4
    assert per_second(track, 20, 5) == 0


@given(st.lists(st.tuples(st.integers(1, 2 * SECONDS), st.integers(0, 1000)), max_size=40))
def test_a_track_is_the_last_quarter_of_an_hour_of_a_dictionary(steps):
    track, known, second = Track(), {}, 5
    for pause, value in steps:
        second += pause
        track.put(second, value)
        known[second] = value
    expected = [known.get(at) for at in range(second - SECONDS + 1, second + 1)]
    assert track.series(second) == expected
    assert track.total == sum(value for value in expected if value is not None)


def test_an_hour_of_silence_leaves_nothing_behind():
    track = Track()
    track.put(5, 7)
    track.put(5 + 4 * SECONDS, 0)
    assert track.total == 0
    assert [value for value in track.series(5 + 4 * SECONDS) if value is not None] == [0]


def test_figures_and_tenants_second_by_second():
    pulse = Pulse()
    pulse.sample(1, Figures(tokens=30, in_flight=2), {"t1": Tally("acme", 30, 2, 1)})
    pulse.sample(2, Figures(tokens=0), {})
    pulse.sample(2, Figures(tokens=99), {"t1": Tally("acme", 99)})  # that second is over
    assert pulse.tracks["tokens"].series(2)[-3:] == [None, 30, 0]
    acme = pulse.tenants["t1"]
    assert (acme.tokens.series(2)[-2:], acme.in_flight.series(2)[-2:]) == ([30, 0], [2, 0])
    assert (acme.tokens.total, acme.limited.total) == (30, 1)


def test_percentiles_are_of_the_last_minute_and_a_gap_without_one():
    pulse = Pulse()
    assert pulse.ttft(0) == (None, None)
    for number in range(1, 101):
        pulse.first_token(100, number / 100)
    assert pulse.ttft(100) == (0.5, 0.95)
    assert pulse.ttft(161) == (None, None)
    pulse.sample(1, Figures(ttft_p50=None), {})
    assert pulse.tracks["ttft_p50"].series(1)[-1] is None


@pytest.mark.parametrize(("part", "value"), [(0.0, 1), (0.5, 2), (0.75, 3), (0.95, 4), (1.0, 4)])
def test_nearest_rank(part, value):
    assert percentile([1, 2, 3, 4], part) == value


def test_tenants_are_bounded_and_the_longest_idle_goes_first():
    pulse = Pulse(most_tenants=2)
    pulse.sample(1, Figures(), {"a": Tally("a", 1), "b": Tally("b", 1)})
    pulse.sample(2, Figures(), {"a": Tally("a", 1)})
    pulse.sample(3, Figures(), {"c": Tally("c", 1)})
    assert set(pulse.tenants) == {"a", "c"}
    pulse.sample(4, Figures(), {name: Tally(name, 1) for name in "acdefg"})
    assert set(pulse.tenants) == {"a", "c"}, "those that are active now stay, whoever else comes"
    pulse.sample(4 + SECONDS, Figures(), {})
    assert pulse.tenants == {}, "nobody was active for 15 minutes"


def test_memory_is_bounded():
    pulse = Pulse()
    for number in range(3000):
        pulse.sample(number + 1, Figures(), {f"t{number}": Tally("x", 1)})
        pulse.first_token(number, 1.0)
    tracks = [*pulse.tracks.values()]
    for tenant in pulse.tenants.values():
        tracks += [tenant.tokens, tenant.in_flight, tenant.limited]
    assert len(pulse.tenants) <= 256
    assert sum(len(track._values) * array("f").itemsize for track in tracks) < 4 * 2**20


def test_thinned_is_means_and_gaps():
    assert thinned([1, 3, None, 5, None, None, 7], 2) == [2, 5, None, 7]
