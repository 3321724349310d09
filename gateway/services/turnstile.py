"""Owner of the waiting line: a request asks for a turn and gets a worker.

The order is `gateway.core.line`'s and the choice of worker `gateway.core.fleet`'s; this shell holds the futures, looks
again whenever something changed, and gives up at the queue deadline.
"""

import asyncio

from gateway.core.fleet import COOL_S, Fleet, Pool
from gateway.core.line import Line, Ticket
from shared.errors import DeadlineError, RateLimitError, UnavailableError
from shared.settings import LimitSettings


class Turnstile:
    """One per gateway."""

    def __init__(self, fleet: Fleet, limits: LimitSettings) -> None:
        self.line = Line(limits.queue_per_tenant, limits.queue_total)
        self._fleet = fleet
        self._limits = limits
        self._futures: dict[Ticket, asyncio.Future[str]] = {}
        self._look_soon: asyncio.Handle | None = None

    def ticket(self, pool: Pool, tenant: str, now: float) -> Ticket:
        """A wish for a slot; it keeps its age when it has to ask again."""
        return Ticket(pool=pool, tenant=tenant, entered=now)

    async def turn(self, ticket: Ticket, *, again: bool = False) -> str:
        """Wait for the turn of `ticket`; returns the worker, already counted in the fleet: give it back or use it.

        `again` puts it back at the head. Raises RateLimitError or UnavailableError when the line is full, and
        DeadlineError or UnavailableError when the queue deadline passes.
        """
        loop = asyncio.get_running_loop()
        if again:
            self.line.rejoin(ticket)
        elif self.line.empty(ticket.pool) and (at_once := self._pick(loop.time(), ticket)) is not None:
            return at_once
        else:
            self._refuse_if_full(ticket)
            self.line.join(ticket)
        future: asyncio.Future[str] = loop.create_future()
        self._futures[ticket] = future
        self.look()
        try:
            async with asyncio.timeout_at(ticket.entered + self._limits.queue_s):
                wid = await future
        except TimeoutError:
            self._give_back(future)
            raise self._gave_up(ticket) from None
        except asyncio.CancelledError:
            self._give_back(future)
            raise
        finally:
            self._futures.pop(ticket, None)
            self.line.leave(ticket)
        return wid

    def look(self) -> None:
        """Something changed: serve everyone whose turn has come."""
        now = asyncio.get_running_loop().time()
        for ticket, wid in self.line.dispatch(now, lambda ticket: self._pick(now, ticket)):
            future = self._futures.get(ticket)
            if future is None or future.done():
                self._fleet.give(wid, self._fleet.workers[wid].ann.wep)
            else:
                future.set_result(wid)

    def _pick(self, now: float, ticket: Ticket) -> str | None:
        """The worker for a ticket, counted as taken; None if none has room."""
        view = self._fleet.pick(now, ticket.pool, ticket.avoid)
        if view is None and ticket.avoid:
            # Nobody else can: the worker that did not answer gets another chance.
            view = self._fleet.pick(now, ticket.pool)
        if view is None:
            return None
        self._fleet.take(view.wid)
        return view.wid

    def look_later(self) -> None:
        """A worker just refused: look again when it may be asked again."""
        if self._look_soon is None:
            self._look_soon = asyncio.get_running_loop().call_later(COOL_S * 1.1, self._looked)

    def _looked(self) -> None:
        self._look_soon = None
        self.look()

    def _give_back(self, future: "asyncio.Future[str]") -> None:
        """The turn came in the same moment as the cancel."""
        if future.done() and not future.cancelled():
            wid = future.result()
            self._fleet.give(wid, self._fleet.workers[wid].ann.wep)
            self.look()

    def _refuse_if_full(self, ticket: Ticket) -> None:
        full = self.line.room(ticket.tenant)
        if not full:
            return
        wait = min(60.0, max(1.0, self.line.predicted_wait(ticket.pool)))
        if full == "tenant":
            raise RateLimitError(
                f"Too many requests of this tenant are waiting ({self._limits.queue_per_tenant}).",
                code="queue_full",
                retry_after=wait,
                retryable=True,
            )
        raise UnavailableError("The service is overloaded.", code="overloaded", retry_after=wait, retryable=True)

    def _gave_up(self, ticket: Ticket) -> DeadlineError | UnavailableError:
        if not self._fleet.ready(ticket.pool):
            return UnavailableError(
                f"No worker serves {ticket.pool[0]} now.", code="no_worker", retry_after=5, retryable=True
            )
        return DeadlineError(
            f"The request waited {self._limits.queue_s:g} s in the queue.", code="queue_timeout", retryable=True
        )
