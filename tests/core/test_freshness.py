"""When keys in memory may be believed, by a clock that the test moves."""

from gateway.core.freshness import CUT_OFF_S, GRACE_S, Freshness


def test_at_first_and_without_a_bus_all_is_well():
    fresh = Freshness()
    fresh.failed()  # the store is down, and nothing says that anything changed
    assert (fresh.fault(1e6), fresh.owed, fresh.silent_s(1e6)) == (None, False, 0.0)


def test_an_announced_change_is_waited_for_briefly():
    fresh = Freshness()
    fresh.announced(10.0, 7)
    assert (fresh.owed, fresh.fault(10.0 + GRACE_S / 2), fresh.fault(10.0 + GRACE_S)) == (True, None, "keys_stale")
    fresh.read(10.0, 7)
    assert fresh.fault(11.0) is None


def test_an_announced_change_that_cannot_be_read_ends_the_service_at_once_and_a_read_begins_it_again():
    fresh = Freshness()
    fresh.announced(10.0, 7)
    fresh.failed()
    assert fresh.fault(10.1) == "keys_stale"
    fresh.read(9.0, 6)  # it began before, and has not got that far
    assert fresh.fault(20.0) == "keys_stale"
    fresh.read(20.0, 5)  # a restored backup: the store's word is the truth
    assert fresh.fault(20.0) is None


def test_a_read_that_began_before_the_announcement_and_has_it_settles_it():
    fresh = Freshness()
    fresh.announced(10.0, 7)
    fresh.read(9.9, 7)
    assert not fresh.owed


def test_a_stream_of_changes_does_not_end_the_service_as_long_as_each_is_read():
    fresh, now = Freshness(), 0.0
    for revision in range(1, 100):
        began, now = now, now + 0.1
        fresh.announced(began + 0.05, revision + 1)  # while the one before it is being read
        fresh.read(began, revision)
        assert fresh.fault(now) is None
    fresh.announced(now, 200)
    assert fresh.fault(now + 2 * GRACE_S) == "keys_stale"


def test_after_the_bus_came_back_nobody_is_let_in_before_the_store_was_read():
    fresh = Freshness()
    fresh.heard(0.0)
    fresh.returned(5.0)
    assert fresh.fault(5.0) == "keys_stale"
    fresh.read(4.9, 100)  # it began before: what was announced in between may be missing
    assert fresh.fault(5.1) == "keys_stale"
    fresh.read(5.0, 1)
    assert fresh.fault(5.1) is None


def test_an_announcement_does_not_soften_what_is_owed_already():
    fresh = Freshness()
    fresh.returned(5.0)
    fresh.announced(5.1, 9)
    fresh.read(5.05, 9)
    assert fresh.fault(5.2) == "keys_stale"


def test_silence_on_the_bus_cuts_off_and_its_end_needs_a_read():
    fresh = Freshness()
    fresh.heard(0.0)
    assert fresh.fault(CUT_OFF_S) is None
    assert fresh.fault(CUT_OFF_S + 0.01) == "cut_off"
    fresh.heard(10.0)
    assert (fresh.fault(10.0), fresh.silent_s(10.0)) == ("keys_stale", 0.0)
    fresh.read(10.0, 1)
    assert fresh.fault(10.0) is None


def test_time_in_which_this_process_stood_still_is_no_silence():
    fresh = Freshness()
    fresh.lagged(5.0, 5.0)
    assert fresh.silent_s(9.0) == 0.0
    fresh.heard(10.0)
    fresh.lagged(20.0, 9.5)
    assert fresh.fault(20.0) is None
    assert fresh.fault(20.0 + CUT_OFF_S) == "cut_off"
    fresh.lagged(30.0, 1000.0)  # never more than all of it
    assert fresh.silent_s(31.0) == 1.0
