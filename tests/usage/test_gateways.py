"""When is a process of a gateway dead?"""

from gateway.core.gateways import GRACE_S, SILENT_S, Gateways


def gateways(now=0.0):
    return Gateways(now, "g1", "mine")


def test_silence_of_ten_seconds_and_five_more():
    known = gateways()
    assert known.heard(1.0, "g2", "a")
    assert not known.heard(2.0, "g2", "a")
    assert not known.dead(2.0 + SILENT_S + GRACE_S - 0.1, "g2", "a")
    assert known.dead(2.0 + SILENT_S + GRACE_S, "g2", "a")


def test_a_newer_process_of_the_name_and_five_seconds_more():
    known = gateways()
    known.heard(1.0, "g2", "a")
    assert known.heard(4.0, "g2", "b")
    assert not known.dead(4.0 + GRACE_S - 0.1, "g2", "a")
    assert known.dead(4.0 + GRACE_S, "g2", "a")
    assert not known.dead(4.0 + GRACE_S, "g2", "b")


def test_a_record_may_be_read_before_the_first_heartbeat_of_its_process():
    """The gateway was restarted a moment ago: its record is here, its heartbeat is on its way."""
    known = gateways()
    known.heard(1.0, "g2", "a")
    known.seen(5.0, "g2", "b")
    assert not known.dead(5.0 + GRACE_S, "g2", "b")
    known.heard(5.1, "g2", "b")
    assert not known.dead(15.0, "g2", "b")
    assert known.dead(5.1 + GRACE_S, "g2", "a")


def test_an_old_record_of_a_gateway_that_is_not_heard_waits_for_the_whole_silence():
    known = gateways()
    known.seen(3.0, "g9", "x")
    known.seen(9.0, "g9", "x")
    assert not known.dead(3.0 + SILENT_S + GRACE_S - 0.1, "g9", "x")
    assert known.dead(3.0 + SILENT_S + GRACE_S, "g9", "x")


def test_other_epochs_of_ones_own_name_came_before():
    known = gateways(100.0)
    known.seen(103.0, "g1", "before")
    assert not known.dead(100.0 + GRACE_S - 0.1, "g1", "before")
    assert known.dead(100.0 + GRACE_S, "g1", "before")
    assert not known.dead(100.0 + SILENT_S, "g1", "mine")


def test_nothing_heard_because_we_did_not_listen_is_nobodys_silence():
    known = gateways()
    known.heard(1.0, "g2", "a")
    known.heard(2.0, "g2", "b")
    known.heard_again(60.0)
    assert not known.dead(60.0 + SILENT_S, "g2", "b")
    assert known.dead(60.0, "g2", "a"), "what was replaced stays so"


def test_of_whom_nothing_was_ever_heard_nothing_is_said():
    assert not gateways().dead(1e9, "g3", "x")


def test_old_epochs_are_forgotten_but_not_those_that_own_something():
    known = gateways()
    for at, gep in enumerate("abc"):
        known.heard(float(at), "g2", gep)
    known.forget({("g2", "a")})
    assert known.dead(100.0, "g2", "a")
    assert not known.dead(100.0, "g2", "b")
    assert known.dead(100.0, "g2", "c")


def test_a_process_that_was_replaced_and_comes_back_makes_two_of_one_name():
    known = gateways()
    known.heard(1.0, "g2", "a")
    assert known.heard(2.0, "g2", "b")
    assert not known.doubled(2.0, "g2"), "a restart"
    assert not known.heard(2.5, "g2", "a"), "it is not new"
    assert known.doubled(2.5, "g2")
    assert not known.doubled(2.5 + SILENT_S, "g2"), "one of them ended"
    assert not known.doubled(2.5, "nobody")


def test_two_of_one_name_are_both_alive():
    """Else each would close the other's requests as lost."""
    known = gateways()
    known.seen(0.5, "g1", "twin")
    for step in range(60):
        known.heard(step / 2, "g1", "mine")
        known.heard(step / 2 + 0.25, "g1", "twin")
        assert known.doubled(step / 2 + 0.3, "g1") or step < 1
        assert not known.dead(step / 2 + 0.3, "g1", "twin")
        assert not known.dead(step / 2 + 0.3, "g1", "mine")
