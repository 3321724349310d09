"""One rate window."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.bucket import Bucket

LIMITS = st.integers(1, 10**15)
TIMES = st.integers(0, 10**12)


def test_a_full_bucket_gives_a_minutes_worth_at_once_and_then_one_at_a_time() -> None:
    bucket = Bucket.full(60, 1_000)
    assert [bucket.wait_ms(1_000, 60), bucket.level(1_000)] == [0, 60]
    bucket.take(1_000, 60)
    assert bucket.wait_ms(1_000, 1) == 1_000
    assert bucket.wait_ms(1_999, 1) == 1
    assert bucket.wait_ms(2_000, 1) == 0
    assert bucket.level(31_500) == 30
    assert bucket.level(10**9) == 60, "no more than a minute's worth is ever there"


def test_debt_is_waited_for() -> None:
    bucket = Bucket.full(60, 0)
    bucket.take(0, 60)
    bucket.give(0, -30)
    assert bucket.level(0) == -30
    assert bucket.wait_ms(0, 1) == 31_000


@given(LIMITS, st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 100)), max_size=12), st.integers(1, 100))
def test_the_wait_is_exact_to_the_millisecond(limit: int, history: list[tuple[int, int]], percent: int) -> None:
    bucket, now = Bucket.full(limit, 0), 0
    for passed, used in history:
        now += passed
        bucket.take(now, limit * used // 100)
    amount = max(1, limit * percent // 100)
    wait = bucket.wait_ms(now, amount)
    assert (wait == 0) == (bucket.level(now) >= amount)
    if wait:
        assert bucket.level(now + wait - 1) < amount
    assert bucket.level(now + wait) >= amount


@given(LIMITS, TIMES, TIMES)
def test_a_clock_that_goes_back_harms_nothing(limit: int, first: int, second: int) -> None:
    bucket = Bucket.full(limit, max(first, second))
    bucket.take(max(first, second), limit)
    before = bucket.level(max(first, second))
    assert bucket.level(min(first, second)) == before
    assert bucket.level(max(first, second)) == before, "time that was counted is not counted again"


@given(LIMITS, LIMITS, st.integers(0, 150))
def test_another_limit_keeps_what_was_used_and_makes_no_debt(old: int, new: int, percent: int) -> None:
    bucket = Bucket.full(old, 0)
    used = old * percent // 100
    bucket.take(0, used)
    debt = min(0, bucket.level(0))
    bucket.resize(0, new)
    level = bucket.level(0)
    assert level <= new
    assert level >= max(debt, -new)
    if used <= min(old, new):
        assert level == new - used
    if debt == 0:
        assert level >= 0
