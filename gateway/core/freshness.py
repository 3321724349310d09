"""Whether the keys in memory may be believed. Pure: times are arguments, in seconds on one clock.

Three things can be known. A change was announced and cannot be read: keys are not served from memory until the store
was. The connection to the bus came back: announcements may have been missed, so again not before the store was read.
There was no sign of life over the bus for some seconds: nothing announced would arrive, so nobody is let in. A store
that merely does not answer is none of these: nothing says that anything changed.
"""

from typing import Final, Literal

GRACE_S: Final = 0.5
"""How long keys are still served once a change was announced, while it is being read."""
CUT_OFF_S: Final = 3.0
"""Silence on the bus after which the gateway counts as cut off from it."""

Fault = Literal["keys_stale", "cut_off"]


class Freshness:
    """What one gateway knows of its keys. Until `heard` for the first time the bus is nobody's business."""

    def __init__(self) -> None:
        self._owed_at: float | None = None
        """Since when a read of the store is owed: one that began no earlier settles it."""
        self._wanted: int | None = None
        """The revision that was announced: one that reaches it settles it, too."""
        self._until = 0.0
        """As long as keys are served although a read is owed."""
        self._heard: float | None = None

    @property
    def owed(self) -> bool:
        """Whether the store has to be read before the keys can be believed."""
        return self._owed_at is not None

    def announced(self, now: float, revision: int) -> None:
        """A change was announced that is not in memory."""
        if self._owed_at is None:
            self._wanted, self._until = revision, now + GRACE_S
        elif self._wanted is not None:
            self._wanted = max(self._wanted, revision)
        self._owed_at = now

    def returned(self, now: float) -> None:
        """The bus is back: what was announced meanwhile is not known."""
        self._owed_at = self._until = self._heard = now
        self._wanted = None

    def heard(self, now: float) -> None:
        """A sign of life came over the bus. After too long a silence the bus is back."""
        if self.cut_off(now):
            self.returned(now)
        self._heard = now

    def lagged(self, now: float, stood_still_s: float) -> None:
        """It was this process that did not listen for so long: that time is no silence of the bus."""
        if self._heard is not None:
            self._heard = min(now, self._heard + stood_still_s)

    def read(self, began: float, revision: int) -> None:
        """The store was read, from `began` on, at `revision`."""
        if self._owed_at is None:
            return
        if began >= self._owed_at or (self._wanted is not None and revision >= self._wanted):
            self._owed_at = self._wanted = None
        elif self._wanted is not None:  # what is still wanted was announced while the store was being read
            self._until = max(self._until, began + GRACE_S)

    def failed(self) -> None:
        """The store could not be read: an announced change is not waited for any longer."""
        self._until = 0.0

    def silent_s(self, now: float) -> float:
        """Seconds without a sign of life over the bus."""
        return 0.0 if self._heard is None else now - self._heard

    def cut_off(self, now: float) -> bool:
        """Whether the silence on the bus has lasted too long."""
        return self.silent_s(now) > CUT_OFF_S

    def stale(self, now: float) -> bool:
        """Whether the keys in memory may not be believed."""
        return self._owed_at is not None and now >= self._until

    def fault(self, now: float) -> Fault | None:
        """Why no request may be let in now; None if all is well."""
        if self.cut_off(now):
            return "cut_off"
        return "keys_stale" if self.stale(now) else None
