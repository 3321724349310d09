"""Small parts that both ends share: which process of a peer is speaking, whether anybody listens, and alarms."""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic, Literal, Protocol, TypeVar

from shared.protocol.timing import Timing

_REMEMBERED = 8


class Epoch:
    """The random epoch of a peer's process, and the last few that it replaced.

    Messages of a dead process may still be on their way when its successor speaks, so an epoch that was replaced stays
    old for `stale` seconds. After that it may come back: two processes under one name are a mistake of configuration,
    and whoever speaks last is then believed, rather than nobody for ever.
    """

    __slots__ = ("_replaced", "_stale", "current")

    def __init__(self, stale: float) -> None:
        self.current: str | None = None
        self._stale = stale
        self._replaced: dict[str, float] = {}

    def judge(self, now: float, epoch: str) -> Literal["same", "first", "new", "old"]:
        """Compare without changing anything; `first` means that none was known."""
        if epoch == self.current:
            return "same"
        if now < self._replaced.get(epoch, now):
            return "old"
        return "first" if self.current is None else "new"

    def adopt(self, now: float, epoch: str) -> None:
        """From now on `epoch` is current and the one before it old."""
        if self.current is not None:
            self._replaced[self.current] = now + self._stale
            if len(self._replaced) > _REMEMBERED:
                del self._replaced[next(iter(self._replaced))]
        self._replaced.pop(epoch, None)
        self.current = epoch


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
