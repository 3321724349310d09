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


def stalls_after(life: Lifecycle, since: float, steps: int, *, busy: bool = True, most_s: float = 60.0) -> float | None:
    """Observe twice a second from `since` on, the engine not moving; seconds until that is a stall."""
    for n in range(int(most_s / 0.5) + 1):
        if life.observe(since + n * 0.5, steps, busy):
            return n * 0.5
    return None


def test_a_stall_is_work_without_progress_for_long_enough() -> None:
    assert stalls_after(Lifecycle(stall_s=10.0), 0.0, 5) == 10.0


def test_idle_or_moving_engines_do_not_stall() -> None:
    life = Lifecycle(stall_s=10.0)
    assert stalls_after(life, 0.0, 5, busy=False) is None, "an idle engine has nothing to move for"
    assert stalls_after(life, 60.5, 5, most_s=9.0) is None
    assert stalls_after(life, 70.0, 6) == 10.0, "it moved once, and from there it counts anew"


def test_a_process_that_stood_still_itself_does_not_blame_its_engine() -> None:
    life = Lifecycle(stall_s=10.0)
    assert stalls_after(life, 0.0, 5, most_s=5.0) is None
    assert not life.observe(605.0, 5, busy=True), "ten minutes passed, in which nobody could have moved"
    assert stalls_after(life, 605.5, 5) == 2.5, "5 s were seen, of the pause 2 s count, 0.5 s were seen since"
