"""How long guessers wait, with made-up time."""

import pytest

from gateway.core.logins import FORGET_S, FREE, MOST_PER_NAME_S, MOST_PER_SOURCE_S, Logins, network


def test_the_first_are_free_then_each_waits_twice_as_long():
    logins, now, waits = Logins(), 0.0, []
    for _ in range(FREE + 4):
        while (wait := logins.begin("10.0.0.1", "ada", now)) > 0:
            waits.append(wait)
            now += wait
    assert waits == [1, 2, 4, 8]


def test_a_try_that_must_wait_does_not_count():
    logins = Logins()
    for _ in range(FREE):
        assert logins.begin("10.0.0.1", "ada", 0.0) == 0
    assert {logins.begin("10.0.0.1", "ada", 0.0) for _ in range(100)} == {1.0}


@pytest.mark.parametrize(
    ("source", "name", "most"), [("10.0.0.{}", "ada", MOST_PER_NAME_S), ("10.0.0.1", "n{}", MOST_PER_SOURCE_S)]
)
def test_waits_are_bounded_for_names_lower_than_for_sources(source, name, most):
    logins, now, longest = Logins(), 0.0, 0.0
    for number in range(200):
        while (wait := logins.begin(source.format(number), name.format(number), now)) > 0:
            longest = max(longest, wait)
            now += wait
    assert longest == most


def test_a_success_and_a_long_pause_forget():
    logins = Logins()
    for _ in range(FREE):
        logins.begin("10.0.0.1", "ada", 0.0)
    logins.succeeded("10.0.0.1", "ada")
    for _ in range(FREE):
        assert logins.begin("10.0.0.1", "ada", 0.0) == 0
    later = FORGET_S + 1
    for _ in range(FREE):
        assert logins.begin("10.0.0.1", "ada", later) == 0


def test_what_is_remembered_is_bounded():
    logins = Logins(most=100)
    for number in range(1000):
        logins.begin(f"10.{number // 256}.{number % 256}.1", f"n{number}", 0.0)
    assert len(logins) == 100


@pytest.mark.parametrize(
    ("source", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("unknown", "unknown"),
    ],
)
def test_one_network_is_one_source(source, counted):
    assert network(source) == counted
