"""Admission and life cycle of a worker."""

from hypothesis import given
from hypothesis import strategies as st

from workers.core.lifecycle import Lifecycle
from workers.core.slots import SlotTable


def test_first_come_first_started_and_no_more_than_ahead_wait() -> None:
    table: SlotTable[str] = SlotTable(slots=2, ahead=1)
    assert [table.admit(key) for key in "abcd"] == [0, 1, 2, None]
    assert table.startable() == ["a", "b"]
    table.start("a")
    table.start("b")
    assert table.startable() == []
    table.release("a")
    assert table.startable() == ["c"]


def test_counts_by_phase() -> None:
    table: SlotTable[str] = SlotTable(slots=2, ahead=1)
    for key in "ab":
        table.admit(key)
        table.start(key)
    table.admit("c")
    table.decoding("a")
    assert (table.prefill, table.decode, table.waiting, table.free) == (1, 1, 1, 0)
    for key in "abcc":
        table.release(key)
    assert (table.prefill, table.decode, table.waiting, table.free) == (0, 0, 0, 2)


@given(st.lists(st.tuples(st.sampled_from(["admit", "start", "release"]), st.integers(0, 9)), max_size=80))
def test_never_more_running_than_slots(moves: list[tuple[str, int]]) -> None:
    table: SlotTable[int] = SlotTable(slots=3, ahead=2)
    inside: list[int] = []
    for move, key in moves:
        if move == "admit" and key not in inside:
            admitted = table.admit(key)
            assert (admitted is None) == (len(inside) >= 5)
            if admitted is not None:
                inside.append(key)
        elif move == "start":
            for ready in table.startable():
                table.start(ready)
        elif move == "release":
            table.release(key)
            inside = [k for k in inside if k != key]
        assert table.prefill + table.decode <= 3
        assert table.prefill + table.decode + table.waiting == len(inside)


def test_moves_of_a_life() -> None:
    life = Lifecycle()
    assert not life.to("ready")
    assert life.to("loading")
    assert life.to("ready")
    assert life.to("draining", "asked")
    assert life.reason == "asked"
    assert not life.to("loading")
    assert life.to("ready")


def test_a_stall_is_work_without_progress_for_long_enough() -> None:
    life = Lifecycle(stall_s=10.0)
    assert not life.observe(0.0, 5, busy=True)
    assert not life.observe(9.9, 5, busy=True)
    assert life.observe(10.0, 5, busy=True)


def test_idle_or_moving_engines_do_not_stall() -> None:
    life = Lifecycle(stall_s=10.0)
    assert not life.observe(0.0, 5, busy=False)
    assert not life.observe(60.0, 5, busy=False), "an idle engine has nothing to move for"
    assert not life.observe(61.0, 5, busy=True)
    assert not life.observe(70.0, 6, busy=True)
    assert not life.observe(79.0, 6, busy=True)
    assert life.observe(80.0, 6, busy=True)
