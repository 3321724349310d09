"""Small parts that both ends share: which process of a peer is speaking, whether anybody listens, and alarms."""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic, Literal, Protocol, TypeVar

from shared.protocol.timing import Timing

_REMEMBERED = 8


M = TypeVar("M")


class Epoch(Generic[M]):
    """The random epoch of a peer's process, and the last few that it replaced, each with what was known of it.

    Messages of a dead process may still come after its successor spoke: they are old, however late. A replaced epoch
    comes back only if it goes on speaking for `patience` seconds while the current one says nothing, since then it was
    the supposed successor who was the dead one. (`contested` is since when.)
    """

    __slots__ = ("_patience", "_replaced", "contested", "current")

    def __init__(self, patience: float) -> None:
        self.current: str | None = None
        self.contested: float | None = None
        self._patience = patience
        self._replaced: dict[str, M] = {}

    def judge(self, now: float, epoch: str) -> Literal["same", "first", "new", "old"]:
        """What a message of `epoch` is; `first` means that none was known."""
        if epoch == self.current:
            self.contested = None
            return "same"
        if epoch in self._replaced:
            if self.contested is None:
                self.contested = now
            if now < self.contested + self._patience:
                return "old"
        return "first" if self.current is None else "new"

    def adopt(self, epoch: str, known: M) -> M | None:
        """From now on `epoch` is current; `known` is kept with the one before it. Returns what was kept of `epoch`."""
        if self.current is not None:
            self._replaced[self.current] = known
            if len(self._replaced) > _REMEMBERED:
                del self._replaced[next(iter(self._replaced))]
        self.current = epoch
        self.contested = None
        return self._replaced.pop(epoch, None)


class Strikes:
    """No-responders in a row. A single one proves nothing: a subscription may be re-established that very moment."""

    __slots__ = ("_count", "_since")

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def clear(self) -> None:
        """The peer was heard."""
        self._count = 0

    def strike(self, now: float, timing: Timing) -> bool:
        """Count one; True if the peer must be taken for dead."""
        if not self._count:
            self._since = now
        self._count += 1
        return self._count >= timing.no_responders and now >= self._since + timing.no_responders_span


class Alarmed(Protocol):
    """Something with at most one alarm."""

    alarm: float | None


A = TypeVar("A", bound=Alarmed)


class Alarms(Generic[A]):
    """A heap of alarms. Moving one leaves its old entry behind, which is recognised and skipped when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, A]] = []
        self._serial = count()

    def set(self, owner: A, when: float | None) -> None:
        """Give `owner` this alarm instead of the one it had; None for none."""
        if when is not None and when != owner.alarm:
            heapq.heappush(self._heap, (when, next(self._serial), owner))
        owner.alarm = when

    def due(self, now: float) -> Iterator[A]:
        """Take everyone whose alarm is due. One set meanwhile for `now` or earlier waits for the next call."""
        taken = []
        while self._heap and self._heap[0][0] <= now:
            when, _, owner = heapq.heappop(self._heap)
            if owner.alarm == when:
                owner.alarm = None
                taken.append(owner)
        return iter(taken)

    def next(self) -> float | None:
        """When the earliest alarm is due."""
        while self._heap and self._heap[0][2].alarm != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Drop all of them."""
        for _, _, owner in self._heap:
            owner.alarm = None
        self._heap.clear()
