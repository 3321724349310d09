"""Whose turn it is: first in, first out, one line per pool, bounded per tenant and in all. Pure.

A ticket keeps its place when a worker refuses it. The head of a line that finds no worker holds up its own pool only.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from gateway.core.fleet import Pool

_EWMA = 0.2
_FIRST_GUESS_S = 1.0


class Ticket(msgspec.Struct, eq=False):
    """One request's wish for a slot. `avoid`: workers that failed to answer it; `lost`: how many died with it."""

    pool: Pool
    tenant: str
    entered: float
    avoid: frozenset[str] = frozenset()
    lost: int = 0
    unanswered: int = 0
    waiting: bool = False


class Line:
    """All waiting tickets."""

    def __init__(self, per_tenant: int, total: int) -> None:
        self._per_tenant = per_tenant
        self._total = total
        self._lines: dict[Pool, deque[Ticket]] = {}
        self._tenants: dict[str, int] = {}
        self._last_dispatch: dict[Pool, float] = {}
        self._interval: dict[Pool, float] = {}

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def empty(self, pool: Pool) -> bool:
        """Nobody waits for `pool`: whoever comes may be served at once."""
        return pool not in self._lines

    def room(self, tenant: str) -> str:
        """Empty if one more fits, else whose bound is reached: "tenant" or "total"."""
        if self._tenants.get(tenant, 0) >= self._per_tenant:
            return "tenant"
        return "total" if len(self) >= self._total else ""

    def join(self, ticket: Ticket) -> None:
        """At the end of its pool's line."""
        self._enter(ticket)
        self._lines.setdefault(ticket.pool, deque()).append(ticket)

    def rejoin(self, ticket: Ticket) -> None:
        """Back at the head: it had its turn, and the worker did not take it."""
        self._enter(ticket)
        self._lines.setdefault(ticket.pool, deque()).appendleft(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Wherever it stands. Idempotent."""
        if ticket.waiting:
            line = self._lines[ticket.pool]
            line.remove(ticket)
            self._left(ticket, line)

    def dispatch(self, now: float, pick: Callable[[Ticket], str | None]) -> list[tuple[Ticket, str]]:
        """Everyone whose turn has come, with the worker that `pick` chose; `pick` must count what it gives out."""
        served: list[tuple[Ticket, str]] = []
        for pool in list(self._lines):
            line = self._lines[pool]
            while line and (wid := pick(line[0])) is not None:
                ticket = line.popleft()
                self._left(ticket, line)
                self._dispatched(now, pool)
                served.append((ticket, wid))
        return served

    def position(self, ticket: Ticket) -> int:
        """How many stand before it in its pool; 0 for the head or one that does not wait."""
        return self._lines[ticket.pool].index(ticket) if ticket.waiting else 0

    def predicted_wait(self, pool: Pool, position: int | None = None) -> float:
        """Seconds until a ticket at `position` (default: a new one) is served, from the recent pace of dispatches."""
        before = len(self._lines.get(pool, ())) if position is None else position
        return (before + 1) * self._interval.get(pool, _FIRST_GUESS_S)

    def longest_wait(self) -> float:
        """Seconds that one more ticket would wait where the wait is longest; 0 if nobody waits anywhere."""
        return max((self.predicted_wait(pool) for pool in self._lines), default=0.0)

    def _enter(self, ticket: Ticket) -> None:
        ticket.waiting = True
        self._tenants[ticket.tenant] = self._tenants.get(ticket.tenant, 0) + 1

    def _left(self, ticket: Ticket, line: deque[Ticket]) -> None:
        ticket.waiting = False
        left = self._tenants[ticket.tenant] - 1
        if left:
            self._tenants[ticket.tenant] = left
        else:
            del self._tenants[ticket.tenant]
        if not line:
            del self._lines[ticket.pool]

    def _dispatched(self, now: float, pool: Pool) -> None:
        before = self._last_dispatch.get(pool)
        self._last_dispatch[pool] = now
        if before is not None and self._lines.get(pool):
            # Only the pace of a line that stays full says how fast it moves.
            seen = now - before
            self._interval[pool] = (1 - _EWMA) * self._interval.get(pool, seen) + _EWMA * seen
