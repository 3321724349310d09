"""One rate window, as a bucket that fills steadily: what was not used for a minute is there at once, no more. Pure.

Integers only: the level is kept in units of 1/60,000, so that a limit per minute times milliseconds is exact. Times are
milliseconds on a clock that does not run backwards; if it does all the same, time has stood still.
"""

import msgspec

_MINUTE_MS = 60_000


class Bucket(msgspec.Struct):
    """`limit` per minute, and as much at once. A level below zero is debt, which later takes wait for."""

    limit: int
    units: int
    at_ms: int

    @classmethod
    def full(cls, limit: int, now_ms: int) -> "Bucket":
        """A bucket that nobody has used yet."""
        return cls(limit, limit * _MINUTE_MS, now_ms)

    def level(self, now_ms: int) -> int:
        """What is there, in whole things, rounded down; below zero is owed."""
        self._fill(now_ms)
        return self.units // _MINUTE_MS

    def wait_ms(self, now_ms: int, amount: int) -> int:
        """How long until `amount` (at most `limit`) is there: 0 if it is, and never a millisecond more or less."""
        self._fill(now_ms)
        missing = amount * _MINUTE_MS - self.units
        return max(0, -(-missing // self.limit))

    def take(self, now_ms: int, amount: int) -> None:
        """Take it whether or not it is there: whoever must wait has asked `wait_ms` first."""
        self._fill(now_ms)
        self.units -= amount * _MINUTE_MS

    def give(self, now_ms: int, amount: int) -> None:
        """Put back what was taken and not used. Below zero: what was used beyond what was taken."""
        self._fill(now_ms)
        self.units = min(self.limit * _MINUTE_MS, self.units + amount * _MINUTE_MS)

    def resize(self, now_ms: int, limit: int) -> None:
        """Another limit from now on. What was used counts against it, but a lower one makes no new debt of it.

        Debt that there is already stays, up to a minute's worth of the new limit.
        """
        self._fill(now_ms)
        used = (self.limit * _MINUTE_MS) - self.units
        full = limit * _MINUTE_MS
        self.units = max(full - used, min(self.units, 0))
        self.units = min(full, max(self.units, -full))
        self.limit = limit

    def _fill(self, now_ms: int) -> None:
        if now_ms > self.at_ms:
            self.units = min(self.limit * _MINUTE_MS, self.units + self.limit * (now_ms - self.at_ms))
            self.at_ms = now_ms
