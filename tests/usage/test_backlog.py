"""What was not confirmed is repeated, the same bytes, within bounds."""

from gateway.core.backlog import PACE, Backlog, Pending, Recent


def record(n, kind="open", request=None):
    return Pending(n, kind, request or f"r{n}", b"%d" % n, 0.0)


def filled(count, **options):
    backlog = Backlog(**options)
    for n in range(1, count + 1):
        assert backlog.add(0.0, record(n))
    return backlog


def numbers(pending):
    return [one.n for one in pending]


def test_a_record_is_repeated_until_it_is_confirmed():
    backlog = filled(2)
    assert backlog.due(1.9) == []
    again = backlog.due(2.0)
    assert [(one.n, one.payload) for one in again] == [(1, b"1"), (2, b"2")]
    assert backlog.due(3.9) == []
    backlog.confirmed(1)
    backlog.confirmed(1)
    assert numbers(backlog.due(4.0)) == [2]
    backlog.confirmed(2)
    assert not backlog
    assert backlog.due(100.0) == []


def test_a_confirmation_of_what_is_not_here_does_nothing():
    backlog = filled(1)
    backlog.confirmed(77)
    assert len(backlog) == 1


def test_after_a_reconnect_everything_is_due_at_once_in_order_and_paced():
    backlog = filled(PACE + 10)
    backlog.reconnected()
    assert numbers(backlog.due(0.1)) == list(range(1, PACE + 1))
    assert numbers(backlog.due(0.1)) == list(range(PACE + 1, PACE + 11))
    assert backlog.due(0.1) == []


def test_while_the_stream_refuses_one_record_at_a_time_is_tried():
    backlog = filled(5)
    backlog.refused()
    assert numbers(backlog.due(2.0)) == [1]
    assert numbers(backlog.due(2.0)) == [2]
    backlog.confirmed(1)
    assert numbers(backlog.due(2.0)) == [3, 4, 5]


def test_a_later_check_and_the_close_replace_a_requests_check():
    backlog = Backlog()
    backlog.add(0.0, record(1, "open", "r"))
    backlog.add(0.0, record(2, "check", "r"))
    backlog.add(0.0, record(3, "check", "r"))
    backlog.add(0.0, record(4, "check", "other"))
    assert numbers(backlog.due(2.0)) == [1, 3, 4]
    backlog.add(2.0, record(5, "close", "r"))
    assert numbers(backlog.due(4.0)) == [1, 4, 5]
    assert not backlog.dropped


def test_when_full_checks_make_room_first_then_the_oldest_and_all_of_it_is_counted():
    backlog = Backlog(most=3)
    for n, kind in ((1, "open"), (2, "check"), (3, "open")):
        assert backlog.add(0.0, record(n, kind))
    assert backlog.add(0.0, record(4, "close"))
    assert backlog.add(0.0, record(5, "close"))
    assert not backlog.add(0.0, record(6, "check"))
    assert numbers(backlog.due(2.0)) == [3, 4, 5]
    assert backlog.dropped == {"check": 2, "open": 1}
    assert len(backlog) == 3


def test_a_set_that_forgets_the_oldest():
    recent = Recent(2)
    for item in ("a", "b", "a", "c"):
        recent.add(item)
    assert [item in recent for item in "abc"] == [False, True, True]
