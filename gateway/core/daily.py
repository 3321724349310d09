"""Usage added up by day: what a request counts in, and the sums. Pure.

A day is the ordinal of the tenant's own date on which the request was let in (1 is 1 January of year 1).
"""

from collections.abc import Iterable
from datetime import date
from typing import Final, NamedTuple

import msgspec

from gateway.core.charging import FINISHED, Totals

MOST: Final = 2**53
"""Counts and sums beyond it are nonsense; a database that refused them would refuse all that comes behind."""
EPOCH: Final = date(1970, 1, 1).toordinal()
LAST: Final = date.max.toordinal()
_DAY_MS = 86_400_000


class Place(NamedTuple):
    """What is added up together."""

    tenant_id: str
    day: int
    key_id: str
    model: str
    version: str


class Sums(msgspec.Struct, frozen=True):
    """So many requests, those of them that did not end with a whole answer, their tokens, and seconds of a device."""

    requests: int = 0
    failed: int = 0
    prompt: int = 0
    cached: int = 0
    charged: int = 0
    generated: int = 0
    accepted: int = 0
    proposed: int = 0
    device_seconds: float = 0.0

    def plus(self, other: "Sums") -> "Sums":
        """Both together; whatever is more than `MOST` is that."""
        return Sums(*(min(getattr(self, name) + getattr(other, name), MOST) for name in SUMS))


SUMS: Final = Sums.__struct_fields__


def day_of(day: int, at_ms: int) -> int:
    """The day that a record says, else the UTC day on which it was stored: old records say 0, and peers anything."""
    return day if 1 <= day <= LAST else min(max(EPOCH + at_ms // _DAY_MS, 1), LAST)


def one(totals: Totals) -> Sums:
    """The sums of one request."""
    return Sums(
        1,
        int(totals.outcome not in FINISHED),
        totals.prompt,
        totals.cached,
        totals.charged,
        totals.generated,
        totals.accepted,
        totals.proposed,
        totals.device_seconds,
    )


def folded(requests: Iterable[tuple[Place, Totals]]) -> dict[Place, Sums]:
    """The sums of all of them, by place. In which order they come makes no difference, but for fractions of seconds."""
    sums: dict[Place, Sums] = {}
    for place, totals in requests:
        sums[place] = sums.get(place, Sums()).plus(one(totals))
    return sums
