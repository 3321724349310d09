"""When a child process that died is started again: a doubling back-off that forgets after a quiet spell.

    waiting --started(now)--> up --died(now, status)--> Restart(after_s) or GiveUp

The supervisor never tires of restarting, it only slows down; the one exception is an exit status by which the child
itself says that trying again is no use (`EX_CONFIG`, from BSD's sysexits.h).
"""

import msgspec

EX_CONFIG = 78
"""Exit status of a child whose configuration cannot work: starting it again would give the same."""

_MOST_DOUBLINGS = 32


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How patient to be with one child. Times in seconds."""

    first_s: float = 0.1
    most_s: float = 5.0
    settled_s: float = 30.0
    final: frozenset[int] = frozenset({EX_CONFIG})


class Restarts(msgspec.Struct, frozen=True, kw_only=True):
    """Deaths in a row, each within `settled_s` of its start, and when the present life began."""

    failures: int = 0
    started_at: float | None = None
    total: int = 0


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Start it again, `after_s` seconds from now."""

    after_s: float
    failures: int


class GiveUp(msgspec.Struct, frozen=True, kw_only=True):
    """Leave it: the child said that it can never run like this."""

    status: int


def started(state: Restarts, now: float) -> Restarts:
    """Note that the child came up at `now` (seconds, any monotonic clock)."""
    return msgspec.structs.replace(state, started_at=now)


def died(state: Restarts, now: float, status: int | None, policy: RestartPolicy) -> tuple[Restarts, Restart | GiveUp]:
    """Note a death and say what follows.

    `status` is the exit status as `subprocess` gives it (negative: killed by that signal), or `None` where the process
    could not even be started. A life of at least `settled_s` wipes the earlier failures.
    """
    lived_s = 0.0 if state.started_at is None else now - state.started_at
    failures = 1 if lived_s >= policy.settled_s else state.failures + 1
    after = Restarts(failures=failures, total=state.total + 1)
    if status is not None and status in policy.final:
        return after, GiveUp(status=status)
    delay_s = min(policy.most_s, policy.first_s * 2 ** min(failures - 1, _MOST_DOUBLINGS))
    return after, Restart(after_s=delay_s, failures=failures)
