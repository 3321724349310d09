"""Streams per tenant."""

import pytest

from gateway.core.concurrency import Concurrency


def test_exactly_the_limit_and_free_again() -> None:
    held = Concurrency()
    assert [held.take("t", 1, 3) for _ in range(5)] == [True, True, True, False, False]
    assert held.take("other", 3, 3)
    assert held.held() == 6
    held.give("t", 1)
    assert held.take("t", 1, 3)
    assert not held.take("t", 1, 3)


def test_several_at_once_or_none() -> None:
    held = Concurrency()
    assert held.take("t", 2, 3)
    assert not held.take("t", 2, 3)
    assert held.held("t") == 2
    held.give("t", 2)
    assert held.held("t") == 0


def test_giving_back_what_nobody_took_is_a_fault() -> None:
    with pytest.raises(KeyError):
        Concurrency().give("t", 1)
