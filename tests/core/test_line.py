"""First in, first out, bounded, and nobody lost."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.line import Line, Ticket

POOL, OTHER = ("m", "1"), ("m", "2")


def ticket(tenant: str = "t", pool: tuple[str, str] = POOL) -> Ticket:
    return Ticket(pool=pool, tenant=tenant, entered=0.0)


def slots(n: int) -> Callable[[Ticket], str | None]:
    left = [n]

    def pick(_ticket: Ticket) -> str | None:
        if not left[0]:
            return None
        left[0] -= 1
        return "w"

    return pick


def test_order_of_arrival() -> None:
    line, tickets = Line(9, 9), [ticket() for _ in range(5)]
    for one in tickets:
        line.join(one)
    assert [t for t, _ in line.dispatch(0.0, slots(3))] == tickets[:3]
    assert line.position(tickets[4]) == 1
    assert [t for t, _ in line.dispatch(0.0, slots(9))] == tickets[3:]


def test_a_refused_ticket_keeps_its_place() -> None:
    line, first, second = Line(9, 9), ticket(), ticket()
    line.join(first)
    line.join(second)
    line.dispatch(0.0, slots(1))
    line.rejoin(first)
    assert [t for t, _ in line.dispatch(0.0, slots(2))] == [first, second]


def test_a_pool_without_workers_holds_up_only_itself() -> None:
    line, stuck, free = Line(9, 9), ticket(pool=POOL), ticket(pool=OTHER)
    line.join(stuck)
    line.join(free)
    assert [t for t, _ in line.dispatch(0.0, lambda t: "w" if t.pool == OTHER else None)] == [free]
    assert len(line) == 1


def test_bounds_name_whose_they_are() -> None:
    line = Line(per_tenant=2, total=3)
    for tenant in ("a", "a"):
        assert line.room(tenant) == ""
        line.join(ticket(tenant))
    assert line.room("a") == "tenant"
    line.join(ticket("b"))
    assert line.room("b") == "total"
    line.dispatch(0.0, slots(1))
    assert line.room("b") == ""


def test_leaving_is_idempotent_and_frees_the_place() -> None:
    line, one = Line(1, 1), ticket()
    line.join(one)
    line.leave(one)
    line.leave(one)
    assert len(line) == 0
    assert line.room("t") == ""


def test_predicted_wait_follows_the_pace_of_a_line_that_stays_full() -> None:
    line = Line(99, 99)
    for _ in range(50):
        line.join(ticket())
    for second in range(40):
        line.dispatch(float(second * 2), slots(1))
    assert line.predicted_wait(POOL, 0) == pytest.approx(2.0, rel=0.01)
    assert line.predicted_wait(POOL) == pytest.approx(22.0, rel=0.01)


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "serve"]), st.integers(0, 3)), max_size=60))
def test_nobody_is_lost_or_served_twice(moves: list[tuple[str, int]]) -> None:
    line, waiting, served = Line(1000, 1000), [], []
    for move, number in moves:
        if move == "join":
            waiting.append(ticket(str(number)))
            line.join(waiting[-1])
        elif move == "leave" and waiting:
            line.leave(waiting.pop(number % len(waiting)))
        elif move == "serve":
            got = [t for t, _ in line.dispatch(0.0, slots(number))]
            assert got == waiting[:number]
            del waiting[:number]
            served += got
        assert len(line) == len(waiting)
    assert len({id(t) for t in served}) == len(served)
    assert not any(t.waiting for t in served)
