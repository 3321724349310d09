"""Is the table of usage what the stream of records folds to, and are its sums what its rows add up to? Pure.

Who asks reads the stream from its first record on, folds it with `core.ledger`, and hands over what closed, batch by
batch in the stream's order, with the rows that are there; then every row, in any order.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, Protocol

import msgspec

from gateway.core.daily import EPOCH, SUMS, Place, Sums

_DAY_MS = 86_400_000
_FARTHEST_EAST_MS = 15 * 3_600_000
"""A local day begins at most 14 h before the UTC day of its date; an hour for clocks that differ."""
_EXACT = 1e-6
"""Relative difference of sums of seconds that came about in another order."""


class Row(Protocol):
    """A row of usage, as a struct whose fields are its columns."""

    __struct_fields__: ClassVar[tuple[str, ...]]

    @property
    def id(self) -> str:
        """Of the request."""
        ...

    @property
    def sequence(self) -> int:
        """Of the record that closed it."""
        ...

    @property
    def closed_at(self) -> int:
        """By the server's clock, ms since 1970."""
        ...


class Difference(msgspec.Struct, frozen=True):
    """Something that is not as it should be. `what` names the request, or the tenant, day, key, model and version."""

    kind: Literal["missing", "altered", "unknown", "sums", "stream"]
    what: str
    detail: str


class Journal:
    """Rows beside the records. `first` is the stream's first record, of `first_at`; `applied` the last one written."""

    def __init__(self, first: int, first_at: int, applied: int) -> None:
        self.compared = 0
        self.pruned = 0
        """Requests whose rows were deleted as too old."""
        self.older = 0
        """Requests that closed first in a record which the stream has no more."""
        self._begins = (first_at, first)
        self._applied = applied
        self._places = array("Q")
        self._whose = array("q")
        self._told: set[str] = set()

    def closed(self, expected: Sequence[Row], found: Mapping[str, Row], pruned_at: int) -> list[Difference]:
        """What closed in the next part of the stream, as rows, and the rows that there are of the same requests."""
        return [
            difference
            for row in expected
            if row.sequence <= self._applied and (difference := self._one(row, found.get(row.id), pruned_at))
        ]

    def unknown(self, rows: Iterable[Row]) -> list[Difference]:
        """Rows that no record in the stream accounts for, among these; only once the whole stream was handed over."""
        return [
            Difference("unknown", row.id, f"its row says record {row.sequence}, which did not close it")
            for row in rows
            if not self._older(row)
            and row.sequence <= self._applied
            and row.id not in self._told
            and not self._known(row)
        ]

    def _one(self, expected: Row, found: Row | None, pruned_at: int) -> Difference | None:
        if found is None:
            if expected.closed_at < pruned_at:
                self.pruned += 1
                return None
            return Difference("missing", expected.id, f"record {expected.sequence} closed it, and it has no row")
        if found.sequence != expected.sequence and self._older(found):
            self.older += 1
            return None
        if found.sequence < expected.sequence:
            return None  # this one is a repetition: the row's own record came before it, or is found to be none
        self.compared += 1
        self._places.append(expected.sequence)
        self._whose.append(hash(expected.id))
        wrong = _differing(expected, found)
        if not wrong:
            return None
        self._told.add(expected.id)
        return Difference("altered", expected.id, "; ".join(wrong))

    def _older(self, row: Row) -> bool:
        """Its record came before all that the stream still has."""
        return (row.closed_at, row.sequence) < self._begins

    def _known(self, row: Row) -> bool:
        place = bisect_left(self._places, row.sequence)
        here = place < len(self._places) and self._places[place] == row.sequence
        return here and self._whose[place] == hash(row.id)


def whole_from(pruned_at: int) -> int:
    """The first day of which every row must be there, when what closed before `pruned_at` may be deleted."""
    return EPOCH + math.ceil((pruned_at + _FARTHEST_EAST_MS) / _DAY_MS) if pruned_at else 0


def sums(counted: Mapping[Place, Sums], kept: Mapping[Place, Sums], pruned_at: int) -> list[Difference]:
    """Sums of the rows that are there beside those that are kept; of earlier days rows may be gone, but not added."""
    whole = whole_from(pruned_at)
    found = []
    for place in sorted(counted.keys() | kept.keys()):
        rows, said = counted.get(place, Sums()), kept.get(place, Sums())
        wrong = [
            f"{name}: the rows add up to {getattr(rows, name)}, kept is {getattr(said, name)}"
            for name in SUMS
            if not _agree(getattr(rows, name), getattr(said, name), whole=place.day >= whole)
        ]
        if wrong:
            found.append(Difference("sums", " ".join(map(str, place)), "; ".join(wrong)))
    return found


def _agree(rows: float, kept: float, *, whole: bool) -> bool:
    same = rows == kept if isinstance(rows, int) else math.isclose(rows, kept, rel_tol=_EXACT, abs_tol=_EXACT)
    return same or (not whole and rows < kept)


def _differing(expected: Row, found: Row) -> list[str]:
    return [
        f"{name}: the record says {getattr(expected, name)!r}, the row {getattr(found, name)!r}"
        for name in expected.__struct_fields__
        if getattr(expected, name) != getattr(found, name)
    ]
