import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.guessing import Guesses


def test_so_many_a_minute_and_then_one_at_a_time():
    guesses = Guesses(30)
    assert [guesses.bad(0.0, "a") for _ in range(30)] == [0.0] * 30
    wait = guesses.bad(0.0, "a")
    assert wait == pytest.approx(2.0)
    assert guesses.bad(wait - 0.1, "a") == pytest.approx(0.1)
    assert guesses.bad(wait, "a") == 0.0
    assert guesses.bad(wait, "a") > 0


def test_sources_do_not_pay_for_each_other():
    guesses = Guesses(1)
    assert guesses.bad(0.0, "a") == 0.0
    assert guesses.bad(0.0, "b") == 0.0
    assert guesses.bad(0.0, "a") > 0


def test_after_a_quiet_minute_all_is_forgiven_and_forgotten():
    guesses = Guesses(5)
    for _ in range(9):
        guesses.bad(0.0, "a")
    assert [guesses.bad(60.0, "b"), len(guesses)] == [0.0, 1]
    assert [guesses.bad(60.0, "a") for _ in range(5)] == [0.0] * 5


def test_a_hundred_thousand_sources_do_not_pile_up():
    guesses = Guesses(30, most=1000)
    for number in range(100_000):
        assert guesses.bad(number / 1e6, number) == 0.0
    assert len(guesses) == 1000
    assert sys.getsizeof(guesses._paid_at) < 500_000


def test_of_too_many_the_one_heard_of_longest_ago_goes():
    guesses = Guesses(1, most=2)
    guesses.bad(0.0, "a")
    guesses.bad(1.0, "b")
    assert guesses.bad(2.0, "a") > 0  # refused, and heard of again
    guesses.bad(3.0, "c")
    assert guesses.bad(4.0, "a") > 0
    assert guesses.bad(4.0, "b") == 0.0


@given(st.integers(1, 50), st.lists(st.floats(0, 30), max_size=200))
def test_never_more_than_the_limit_in_any_minute_and_the_wait_is_honest(limit, pauses):
    guesses, now, taken = Guesses(limit), 0.0, []
    for pause in pauses:
        now += pause
        wait = guesses.bad(now, "a")
        assert 0 <= wait <= 60 / limit + 1e-6
        if wait:
            assert guesses.bad(now + wait, "a") == 0.0
            now += wait
        taken.append(now)
        # a bucket of `limit` that leaks steadily: at most twice the limit in a minute, and `limit` over the long run
        assert len([t for t in taken if t > now - 60]) <= 2 * limit + 1
