"""Slows those down who try keys: one source may present so many bad ones a minute. Pure; memory is bounded.

For each source there is one number, the time at which it has paid for all its bad keys (the generic cell rate
algorithm, as a bucket that leaks steadily). A source that owes nothing is forgotten; of too many that owe, the one
that was heard of longest ago is.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

MOST_SOURCES: Final = 16_384
_MINUTE_S: Final = 60.0
_ROUNDING_S: Final = 1e-6
_SWEEP: Final = 8
"""Old entries looked at for each new one: more leave than come as long as most of them owe nothing."""


class Guesses:
    """Bad keys by source. `now` in seconds on a clock that does not run backwards."""

    def __init__(self, per_minute: int, most: int = MOST_SOURCES) -> None:
        self._each_s = _MINUTE_S / per_minute
        self._most = most
        self._paid_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paid_at)

    def bad(self, now: float, source: Hashable) -> float:
        """A bad key came from there: 0, or the seconds until that source may present another one.

        One that comes too early is not counted: whoever waits as long as he was told is heard.
        """
        paid_at = max(now, self._paid_at.get(source, now))
        wait = paid_at + self._each_s - (now + _MINUTE_S)
        early = wait > _ROUNDING_S
        self._paid_at[source] = paid_at if early else paid_at + self._each_s
        self._paid_at.move_to_end(source)
        self._forget(now)
        return wait if early else 0.0

    def _forget(self, now: float) -> None:
        for _ in range(_SWEEP):
            source, paid_at = next(iter(self._paid_at.items()))
            if paid_at > now and len(self._paid_at) <= self._most:
                return
            del self._paid_at[source]
            if not self._paid_at:
                return
