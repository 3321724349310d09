"""What the comparison finds: every row that was doctored, and nothing where all is well."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.daily import EPOCH, Place, Sums
from gateway.core.verify import Journal, sums, whole_from

DAY_MS = 86_400_000


class Row(msgspec.Struct, frozen=True):
    id: str
    sequence: int
    closed_at: int
    charged: int = 5


@dataclass
class Case:
    """Records 10, 13, 16, ... closed `a`, `b`, `c`, ...; the stream begins at record 10, at 1,000 ms."""

    applied: int = 100
    pruned_at: int = 0

    def __post_init__(self):
        self.expected = [Row(name, 10 + 3 * n, 1_000 + 10 * n, n) for n, name in enumerate("abcdef")]
        self.rows = {row.id: row for row in self.expected}

    def doctor(self, name, **changes):
        self.rows[name] = replace(self.rows[name], **changes)

    def run(self):
        self.journal = Journal(10, 1_000, self.applied)
        half = len(self.expected) // 2
        found = [
            one
            for part in (self.expected[:half], self.expected[half:])
            for one in self.journal.closed(
                part, {row.id: self.rows[row.id] for row in part if row.id in self.rows}, self.pruned_at
            )
        ]
        return [(one.kind, one.what) for one in [*found, *self.journal.unknown(self.rows.values())]]


def test_all_is_well():
    case = Case()
    assert case.run() == []
    assert case.journal.compared == 6


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"charged": 99}, "altered"),
        ({"closed_at": 5}, "altered"),
        ({"sequence": 99}, "altered"),
        ({"sequence": 11}, "unknown"),
        ({"sequence": 10}, "unknown"),
    ],
)
def test_a_row_that_was_doctored_is_found_once(changes, kind):
    case = Case()
    case.doctor("c", **changes)
    assert case.run() == [(kind, "c")]


def test_a_row_that_is_gone_and_one_that_nobody_wrote():
    case = Case()
    del case.rows["b"]
    case.rows["x"] = Row("x", 14, 1_015)
    assert case.run() == [("missing", "b"), ("unknown", "x")]


def test_what_is_not_to_be_compared():
    """Not written yet; deleted as too old; closed before the stream begins; written after we looked; repeated later."""
    case = Case(applied=20, pruned_at=1_005)
    for name in "aef":
        del case.rows[name]
    case.rows["old"] = Row("old", 3, 900)
    case.rows["old, in the same millisecond"] = Row("old, in the same millisecond", 9, 1_000)
    case.rows["other stream"] = Row("other stream", 5_000, 999)
    case.rows["new"] = Row("new", 31, 2_000)
    case.expected += [Row("b", 19, 1_900, 77), Row("late", 20, 1_950, 3)]
    case.rows["late"] = Row("late", 2, 800, 4)
    assert case.run() == []
    assert (case.journal.compared, case.journal.pruned, case.journal.older) == (3, 1, 1)


PLACES = st.builds(
    Place, st.sampled_from("tu"), st.integers(100, 103), st.just("k"), st.sampled_from("mn"), st.just("1")
)
TABLES = st.dictionaries(PLACES, st.builds(Sums, st.integers(1, 5), st.integers(0, 2), st.integers(0, 9)), max_size=8)


@given(TABLES)
def test_sums_that_agree(table):
    assert sums(table, dict(table), 0) == []


@given(TABLES, st.data())
def test_one_sum_that_is_wrong_is_found(table, data):
    if not table:
        return
    place = data.draw(st.sampled_from(sorted(table)))
    name = data.draw(st.sampled_from(Sums.__struct_fields__))
    doctored = {**table, place: replace(table[place], **{name: getattr(table[place], name) + 1})}
    [one] = sums(table, doctored, 0)
    assert one.what == " ".join(map(str, place))
    assert name in one.detail
    assert sums(doctored, table, 0)
    without = {key: value for key, value in table.items() if key != place}
    assert [one.what for one in sums(without, table, 0)] == [one.what for one in sums(table, without, 0)]


def test_seconds_may_differ_by_the_order_in_which_they_were_added():
    place = Place("t", 100, "k", "m", "1")
    assert sums({place: Sums(device_seconds=0.1 + 0.2)}, {place: Sums(device_seconds=0.3)}, 0) == []


def test_of_days_before_rows_were_deleted_only_too_little_is_a_difference():
    pruned_at = 50 * DAY_MS
    assert whole_from(0) == 0
    assert whole_from(pruned_at) == EPOCH + 51
    for day, kinds in ((EPOCH + 50, []), (EPOCH + 51, ["sums"])):
        place = Place("t", day, "k", "m", "1")
        assert [one.kind for one in sums({place: Sums(1)}, {place: Sums(3)}, pruned_at)] == kinds
        assert [one.kind for one in sums({place: Sums(3)}, {place: Sums(1)}, pruned_at)] == ["sums"]
