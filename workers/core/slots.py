"""Admission: how many requests run, how many wait, and in which order they start. Pure.

A worker runs at most `slots` requests and lets `ahead` more wait, so that a freed slot is filled without a round trip
to the gateway. Whoever came first starts first.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class SlotTable(Generic[K]):
    """Who runs and who waits, by any hashable key."""

    def __init__(self, slots: int, ahead: int) -> None:
        self.slots = slots
        self.ahead = ahead
        self._waiting: dict[K, None] = {}
        self._running: dict[K, bool] = {}  # key -> decoding yet?

    def admit(self, key: K) -> int | None:
        """Take `key` in. Returns how many will start before it, or None if there is no room."""
        if len(self._running) + len(self._waiting) >= self.slots + self.ahead:
            return None
        before = len(self._waiting)
        self._waiting[key] = None
        return before

    def startable(self) -> list[K]:
        """Those whose turn has come, oldest first. The caller starts each with `start`."""
        room = self.slots - len(self._running)
        return [key for key, _ in zip(self._waiting, range(max(0, room)), strict=False)]

    def start(self, key: K) -> None:
        """`key` now has a slot. Raises KeyError if it was not waiting."""
        del self._waiting[key]
        self._running[key] = False

    def decoding(self, key: K) -> None:
        """`key` produced its first token."""
        if key in self._running:
            self._running[key] = True

    def release(self, key: K) -> None:
        """`key` is over, wherever it was. Idempotent."""
        self._waiting.pop(key, None)
        self._running.pop(key, None)

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def prefill(self) -> int:
        """Requests with a slot that have not produced a token."""
        return len(self._running) - self.decode

    @property
    def decode(self) -> int:
        """Requests that produce tokens."""
        return sum(self._running.values())

    @property
    def free(self) -> int:
        """Slots that nobody holds or waits for."""
        return max(0, self.slots - len(self._running) - len(self._waiting))
