"""Usage records that their stream has not confirmed yet: bounded, repeated until it has, and never in anybody's way."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Literal

import msgspec

MOST = 32_768
"""Records kept, of about 250 bytes each."""
AGAIN_S = 2.0
"""A record that was not confirmed is repeated after this long."""
PACE = 256
"""Records repeated at once, at most."""

Kind = Literal["open", "check", "close"]


class Pending(msgspec.Struct):
    """A record as it goes out, always the same bytes. `due` by the owner's clock."""

    n: int
    kind: Kind
    request: str
    payload: bytes
    due: float


class Backlog:
    """Records by their number. The order of the dict is the order of `due`."""

    def __init__(self, most: int = MOST, again_s: float = AGAIN_S) -> None:
        self.dropped: Counter[str] = Counter()
        """Records that are lost, since there was no room, by kind."""
        self.blocked = False
        """The stream refused the last record that it said anything about, or there is none."""
        self._most = most
        self._again_s = again_s
        self._pending: dict[int, Pending] = {}
        self._checks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, now: float, pending: Pending) -> bool:
        """Keep a record, about to be sent, until it is confirmed. False: there is no room, and it must not be sent.

        A later check of a request, and its close, say all that its earlier check said. When all is full, checks make
        room first, then whatever is oldest: a request whose open is lost is still billed by its close.
        """
        if pending.kind != "open":
            self._pending.pop(self._checks.pop(pending.request, 0), None)
        if len(self._pending) >= self._most and not self._make_room(pending.kind):
            self.dropped[pending.kind] += 1
            return False
        if pending.kind == "check":
            self._checks[pending.request] = pending.n
        pending.due = now + self._again_s
        self._pending[pending.n] = pending
        return True

    def confirmed(self, n: int) -> None:
        """The stream has it. Again, or of a record that is not here: nothing happens."""
        self.blocked = False
        self._forget(n)

    def refused(self) -> None:
        """The stream did not take a record, or there is no stream: until it does, one at a time is tried."""
        self.blocked = True

    def reconnected(self) -> None:
        """What was on its way may be lost: everything is due."""
        for pending in self._pending.values():
            pending.due = 0.0

    def due(self, now: float) -> list[Pending]:
        """Records to be repeated now, oldest first, not too many at once."""
        again = list(self._overdue(now, 1 if self.blocked else PACE))
        for pending in again:
            pending.due = now + self._again_s
            self._pending[pending.n] = self._pending.pop(pending.n)  # to the end of the line
        return again

    def _overdue(self, now: float, most: int) -> Iterator[Pending]:
        for pending, _ in zip(self._pending.values(), range(most), strict=False):
            if pending.due > now:
                return
            yield pending

    def _make_room(self, wanted: Kind) -> bool:
        if self._checks:
            victim = next(iter(self._checks.values()))
        elif wanted == "check":
            return False
        else:
            victim = next(iter(self._pending))
        self.dropped[self._pending[victim].kind] += 1
        self._forget(victim)
        return True

    def _forget(self, n: int) -> None:
        pending = self._pending.pop(n, None)
        if pending is not None and pending.kind == "check":
            self._checks.pop(pending.request, None)


class Recent:
    """The last `most` of what was added: a set that forgets the oldest."""

    def __init__(self, most: int) -> None:
        self._order: deque[str] = deque(maxlen=most)
        self._members: set[str] = set()

    def __contains__(self, item: object) -> bool:
        return item in self._members

    def add(self, item: str) -> None:
        """Add one; the oldest goes if there are too many."""
        if item in self._members:
            return
        if len(self._order) == self._order.maxlen:
            self._members.discard(self._order[0])
        self._order.append(item)
        self._members.add(item)
