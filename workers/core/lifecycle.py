"""A worker's life: starting, loading, ready, draining, and whether its engine still makes progress. Pure.

    starting --load--> loading --loaded--> ready <--undrain/drain--> draining
                          |                  |
                          +--- failed -------+--- stalled: the process ends, its supervisor starts a new one

"Healthy" is never asked of the library: an engine that lists its models while it generates nothing is the failure that
users report most. What counts is that work advances while there is work.
"""

from shared.wire import State

STALL_S = 10.0
LATE_S = 2.0
"""Who observes more rarely than this has stood still itself: stopped, starved, or on a machine that slept."""

_MOVES: dict[State, frozenset[State]] = {
    "starting": frozenset({"loading", "draining"}),
    "loading": frozenset({"ready", "draining"}),
    "ready": frozenset({"draining", "loading"}),
    "draining": frozenset({"ready"}),
}


class Lifecycle:
    """State and progress of one worker."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self.state: State = "starting"
        self.reason = ""
        self.progress = 0.0
        self._stall_s = stall_s
        self._steps = -1
        self._still_s = 0.0
        self._observed_at: float | None = None

    def to(self, state: State, reason: str = "") -> bool:
        """Move to `state`; False (and no change) if that is not a move from here."""
        if state == self.state:
            self.reason = reason
            return True
        if state not in _MOVES[self.state]:
            return False
        self.state = state
        self.reason = reason
        return True

    def observe(self, now: float, steps: int, busy: bool) -> bool:
        """Feed the engine's step counter; True once it has stood still for `stall_s` seconds with work at hand.

        Of the time since the last call at most `LATE_S` counts: while this process stood still, so did its engine.
        """
        since_s = 0.0 if self._observed_at is None else min(now - self._observed_at, LATE_S)
        self._observed_at = now
        if not busy or steps != self._steps:
            self._steps = steps
            self._still_s = 0.0
            return False
        self._still_s += since_s
        return self._still_s >= self._stall_s
