"""The fold of usage records: whatever is repeated, each request is closed once and in one way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.ledger import LOST, UNOPENED_KEPT, Ledger
from tests.usage.records import check, closed, opened, orphan, stream


def folded(entries, **options):
    ledger = Ledger(**options)
    return ledger, [found for entry in entries if (found := ledger.apply(entry)) is not None]


def reconciled(ledger, *, dead=lambda _gid, _gep: True):
    return {rid: ledger.reconcile(rid) for rid in ledger.unclosed(dead, 100)}


def charges(ledger):
    return {rid: close.charged for rid, close in reconciled(ledger).items()}


def test_open_check_close():
    ledger, found = folded(stream(("g1", opened("r")), ("g1", check("r", 2, 64)), ("g1", closed("r", 3, 90))))
    [done] = found
    assert (done.sequence, done.at_ms, done.close.charged) == (3, 1003, 90)
    assert len(ledger) == 0
    assert ledger.floor(3) == 4


def test_a_double_close_changes_nothing_and_the_first_in_the_stream_counts():
    ledger, found = folded(
        stream(
            ("g1", opened("r")),
            ("g2", closed("r", 5, 64, outcome=LOST)),
            ("g1", closed("r", 2, 90)),
            ("g1", closed("r", 2, 90)),
        )
    )
    assert [one.close.charged for one in found] == [64]
    assert ledger.repeated == 2


def test_late_repetitions_do_not_open_a_request_again():
    ledger, found = folded(
        stream(("g1", opened("r")), ("g1", closed("r", 2, 9)), ("g1", opened("r")), ("w1", orphan("r", 5, 5)))
    )
    assert len(found) == 1
    assert len(ledger) == 0


def test_a_close_stands_alone_if_its_open_was_lost():
    _, [done] = folded(stream(("g1", closed("r", 2, 9))))
    assert done.close.charged == 9


def test_the_dead_are_closed_at_the_last_check_or_at_what_the_worker_knows():
    ledger, _ = folded(
        stream(
            ("g1", opened("check")), ("g1", check("check", 2, 64)), ("g1", check("check", 3, 128)),
            ("g1", opened("orphan", 4)), ("g1", check("orphan", 5, 64)), ("w1", orphan("orphan", 90, 80)),
            ("g1", opened("neither", 6)),
        )
    )  # fmt: skip
    closes = reconciled(ledger)
    assert {rid: (close.charged, close.generated) for rid, close in closes.items()} == {
        "check": (128, 128),
        "orphan": (80, 90),
        "neither": (0, 0),
    }
    close = closes["check"]
    assert (close.tenant, close.key, close.model, close.label, close.outcome, close.prompt) == (
        "t1",
        "k1",
        "m",
        "label-check",
        LOST,
        7,
    )


def test_a_repeated_earlier_check_does_not_undo_a_later_one():
    ledger, _ = folded(stream(("g1", opened("r")), ("g1", check("r", 3, 128)), ("g1", check("r", 2, 64))))
    assert charges(ledger) == {"r": 128}


def test_of_an_answer_that_is_not_streamed_nothing_was_delivered():
    ledger, _ = folded(stream(("g1", opened("r", streamed=False)), ("w1", orphan("r", 90, 80))))
    assert charges(ledger) == {"r": 0}


def test_an_orphan_counts_only_from_the_worker_that_the_open_names():
    ledger, _ = folded(
        stream(("g1", opened("r", wid="w1")), ("w2", orphan("r", 900, 900)), ("w1", orphan("r", 12, 10)))
    )
    assert charges(ledger) == {"r": 10}


def test_a_later_attempt_supersedes_the_earlier_one_of_that_choice_and_its_orphan():
    ledger, _ = folded(
        stream(
            ("g1", opened("r", 1, choice=0)), ("g1", opened("r", 2, choice=1)), ("w1", orphan("r", 30, 30)),
            ("g1", opened("r", 3, choice=0, attempt=1, wid="w2")), ("w1", orphan("r", 8, 8, choice=1, n=2)),
            ("w2", orphan("r", 5, 5, attempt=1)), ("g1", opened("r", 1, choice=0)),
        )
    )  # fmt: skip
    assert charges(ledger) == {"r": 13}


def test_only_the_dead_are_closed_each_once_and_again_if_it_did_not_get_out():
    ledger, _ = folded(
        stream(("g1", opened("a", gep="old")), ("g1", opened("b", gep="new")), ("g2", opened("c", gep="old")))
    )

    def dead(gid, gep):
        return (gid, gep) == ("g1", "old")

    assert list(reconciled(ledger, dead=dead)) == ["a"]
    assert reconciled(ledger, dead=dead) == {}
    ledger.unpublished("a")
    assert list(reconciled(ledger, dead=dead)) == ["a"]
    ledger.forget("a")
    assert ledger.reconcile("a") is None
    assert ledger.apply(stream(("g1", closed("a", 9, 1)))[0]) is None, "the store has its row"
    assert set(ledger.gateways()) == {("g1", "new"), ("g2", "old")}


def test_nobody_writes_what_is_not_theirs_to_write():
    ledger, found = folded(
        stream(("w1", closed("r", 1, 99)), ("w1", opened("r")), ("w1", check("r", 1, 9)), ("g1", orphan("r", 1, 1)),
               ("g1", opened("s")), ("g2", opened("s", 7, wid="w9")), ("w9", orphan("s", 90, 90)))
    )  # fmt: skip
    assert found == []
    assert ledger.refused == 5
    assert charges(ledger) == {"s": 0}


@pytest.mark.parametrize("aid", ["r", "r.", "r.0", "r.x.0", "r.0.x", "r.-1.0", ""])
def test_an_attempt_without_its_numbers_is_refused(aid):
    record = opened("r").__class__(
        **{**{f: getattr(opened("r"), f) for f in opened("r").__struct_fields__}, "aid": aid}
    )
    ledger, _ = folded(stream(("g1", record)))
    assert ledger.refused == 1
    assert reconciled(ledger) == {}


def test_made_up_attempts_fill_no_memory():
    ledger = Ledger()
    ledger.apply(stream(("g1", opened("real")))[0])
    for number in range(UNOPENED_KEPT + 50):
        ledger.apply(stream(("w1", orphan(f"made-up-{number}", 1, 1)))[0])
    assert len(ledger) == UNOPENED_KEPT + 1
    assert charges(ledger) == {"real": 0}


def test_the_floor_is_the_first_record_of_what_is_open():
    ledger, _ = folded(
        stream(("g1", opened("a")), ("g1", opened("b", 2)), ("g1", closed("a", 3, 1)), ("g1", opened("c", 4)))
    )
    assert ledger.floor(4) == 2
    ledger.renumbered()
    assert ledger.floor(0) == 1


# ------------------------------------------------------------------- whatever order repetitions come in, and replays

HISTORY = [
    ("g1", opened("a", 1)), ("g1", opened("a", 2, choice=1)), ("g2", opened("b", 1, gep="f1")), ("g1", check("a", 3, 64)),
    ("w1", orphan("a", 70, 66)), ("g1", opened("c", 4)), ("g1", closed("c", 5, 11)), ("g2", check("b", 2, 64, gep="f1")),
    ("g1", opened("a", 6, attempt=1, wid="w2")), ("w2", orphan("a", 40, 40, attempt=1)), ("g2", closed("b", 3, 77, gep="f1")),
    ("g3", closed("b", 9, 64, gep="h1", outcome=LOST)), ("g1", check("a", 7, 128)), ("w1", orphan("a", 9, 9, choice=1, n=2)),
    ("g1", opened("d", 8, streamed=False)),
]  # fmt: skip


def outcome(ledger, found):
    return {one.close.aid: one.close.charged for one in found}, len(found), charges(ledger)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(HISTORY) - 1), st.integers(0, 40)), max_size=40))
def test_repetitions_anywhere_behind_the_first_give_the_same_fold(repeated):
    """Each pair repeats a record so many places further back in the stream."""
    plain = outcome(*folded(stream(*HISTORY)))
    lanes = [(float(place), *pair) for place, pair in enumerate(HISTORY)]
    lanes += [(index + 0.5 + later, *HISTORY[index]) for index, later in repeated]
    noisy = [(author, record) for _, author, record in sorted(lanes, key=lambda lane: lane[0])]
    assert outcome(*folded(stream(*noisy))) == plain


@given(st.integers(0, len(HISTORY)))
def test_a_replay_from_the_floor_is_as_good_as_having_been_there(cut):
    """A new reader begins at the floor that the old one left; rows that are there already it only finds again."""
    entries = stream(*HISTORY)
    old, before = folded(entries[:cut])
    floor = old.floor(cut)
    new, again = folded([entry for entry in entries if entry.sequence >= floor])
    live, whole = folded(entries)
    rows = {one.close.aid: one for one in reversed([*before, *again])}
    assert rows == {one.close.aid: one for one in whole}
    assert charges(new) == charges(live)


def test_without_deduplication_one_request_is_billed_again_and_again():
    """The control: what the tests above would find if records were not known by author, attempt, kind and number."""
    twice = stream(*HISTORY, *HISTORY)
    _, found = folded(twice, deduplicate=False)
    assert len(found) == 6
    assert sum(one.close.charged for one in found) > sum(one.close.charged for one in folded(twice)[1])


def test_what_was_over_before_this_reader_began_is_not_waited_for_for_ever():
    ledger = Ledger()
    late, check_again, still = stream(("w1", orphan("a", 9, 5)), ("g1", check("b", 2, 7)), ("g1", opened("c")))
    for entry in (late, check_again, still):
        assert ledger.apply(entry) is None
    assert (len(ledger), ledger.open, ledger.floor(3)) == (3, 1, 1)
    ledger.look(100.0)
    ledger.look(159.9)
    assert len(ledger) == 3, "its open may have to be sent again"
    ledger.look(160.0)
    assert (len(ledger), ledger.open, ledger.floor(3)) == (1, 1, 3), "a new reader need not begin before what is open"


def test_an_open_that_was_sent_again_is_no_stranger():
    ledger = Ledger()
    first, then, end = stream(("w1", orphan("a", 9, 5)), ("g1", opened("a")), ("g1", closed("a", 3, 5)))
    ledger.apply(first)
    ledger.look(0.0)
    ledger.apply(then)
    ledger.look(1_000.0)
    assert ledger.open == 1
    assert ledger.apply(end) is not None
    assert len(ledger) == ledger.open == 0
