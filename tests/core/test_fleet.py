"""Which worker can take one more request."""

import pytest

from gateway.core.fleet import COOL_S, SILENT_S, Fleet
from shared.wire import Ann, Slots, State, Version

POOL = ("m", "1")


def ann(
    n: int = 1, *, wep: str = "a", state: State = "ready", slots: int = 4, version: str = "1", model: str = "m"
) -> Ann:
    served = Version(model=model, version=version, digest="d", context=8, max_output=8, vocab_hash="v")
    return Ann(wep=wep, n=n, state=state, versions=(served,), slots=Slots(total=slots, free=slots))


def fleet(**workers: Ann) -> Fleet:
    made = Fleet()
    for wid, announced in workers.items():
        made.announced(0.0, wid, announced)
    return made


def test_own_work_counts_at_once() -> None:
    two = fleet(a=ann(slots=2), b=ann(slots=2))
    picked = []
    for _ in range(4):
        view = two.pick(0.0, POOL)
        assert view is not None
        two.take(view.wid)
        picked.append(view.wid)
    assert sorted(picked) == ["a", "a", "b", "b"]
    assert picked[0] != picked[1], "a herd: the second request went where the first had just gone"
    assert two.pick(0.0, POOL) is None


@pytest.mark.parametrize("state", ["starting", "loading", "draining"])
def test_only_ready_workers_are_picked(state: State) -> None:
    assert fleet(a=ann(state=state)).pick(0.0, POOL) is None


def test_other_models_and_versions_are_not_picked() -> None:
    others = fleet(a=ann(version="2"), b=ann(model="other"))
    assert others.pick(0.0, POOL) is None
    assert others.pick(0.0, ("m", "2")) is not None


def test_avoided_workers_are_not_picked() -> None:
    two = fleet(a=ann(), b=ann())
    view = two.pick(0.0, POOL, avoid={"a"})
    assert view is not None
    assert view.wid == "b"


def test_silence_is_noticed_once_and_ends_with_an_announcement() -> None:
    one = fleet(a=ann())
    assert one.silent(SILENT_S) == []
    assert one.silent(SILENT_S + 0.01) == ["a"]
    assert one.silent(SILENT_S + 0.02) == []
    assert one.pick(SILENT_S + 0.02, POOL) is None
    assert one.announced(3.0, "a", ann(2))
    assert one.pick(3.0, POOL) is not None


def test_our_own_absence_is_nobodys_silence() -> None:
    one = fleet(a=ann())
    one.heard_again(10.0)
    assert one.silent(10.1) == []


def test_a_new_epoch_starts_empty_and_late_returns_of_the_old_one_do_not_count() -> None:
    one = fleet(a=ann(slots=1))
    one.take("a")
    assert one.announced(1.0, "a", ann(1, wep="b", slots=1))
    assert one.pick(1.0, POOL) is not None
    one.take("a")
    one.give("a", "a")
    assert one.pick(1.0, POOL) is None, "a slot of the old epoch freed one of the new"
    one.give("a", "b")
    assert one.pick(1.0, POOL) is not None


def test_announcements_that_arrive_late_change_nothing() -> None:
    one = fleet(a=ann(5))
    assert not one.announced(1.0, "a", ann(4, state="draining"))
    assert one.pick(1.0, POOL) is not None


def test_a_worker_that_refused_is_left_alone_for_a_moment() -> None:
    one = fleet(a=ann())
    one.refused(1.0, "a")
    assert one.pick(1.0, POOL) is None
    assert one.pick(1.0 + COOL_S, POOL) is not None


def test_newest_version_is_by_number_and_prefers_ready_workers() -> None:
    assert fleet(a=ann(version="9"), b=ann(version="10")).newest("m") == "10"
    assert fleet(a=ann(version="9"), b=ann(version="10", state="loading")).newest("m") == "9"
    assert fleet(b=ann(version="10", state="loading")).newest("m") == "10"
    assert Fleet().newest("m") is None


def test_versions_of_mixed_spelling_still_have_an_order() -> None:
    assert fleet(a=ann(version="1"), b=ann(version="v2"), c=ann(version="")).newest("m") == "v2"


def test_a_lost_process_is_not_asked_until_the_worker_announces_itself_again() -> None:
    one = fleet(a=ann(1, wep="old"))
    one.lost("a", "another")
    assert one.pick(0.0, POOL) is not None, "the loss of another process says nothing about this one"
    one.lost("a", "old")
    assert one.pick(0.0, POOL) is None
    assert one.ready(POOL) == []
    assert one.announced(1.0, "a", ann(1, wep="new"))
    assert one.pick(1.0, POOL) is not None


def test_two_processes_of_one_name_are_told_from_a_restart() -> None:
    one = fleet(a=ann(1, wep="first"))
    one.announced(1.0, "a", ann(1, wep="second"))
    assert not one.workers["a"].doubled, "a restart"
    one.announced(2.0, "a", ann(2, wep="first"))
    assert one.workers["a"].doubled
