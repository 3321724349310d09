"""Who runs, who waits, and why each of them has to stop: the bookkeeping that all engines share."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Literal

from shared.errors import EngineError
from shared.wire import Timings, Usage
from workers.engines.base import EngineRequest, Failed, Finished

if TYPE_CHECKING:
    from collections.abc import Callable

Interrupt = Literal["cancelled", "deadline", "unloaded", "engine_fault"]

_FAILURES: dict[str, tuple[bool, str]] = {
    "deadline": (False, "the deadline passed"),
    "unloaded": (True, "the model was unloaded"),
    "engine_fault": (True, "the engine died"),
}


def settle(turn: asyncio.Future[None]) -> None:
    """Wake whoever waits for `turn`, once."""
    if not turn.done():
        turn.set_result(None)


class Ticket:
    """One request inside an engine. `interrupt` is set at most once; `wake` is called when that happens."""

    __slots__ = ("_timer", "id", "interrupt", "queued_at", "started_at", "state", "wake")

    def __init__(self, request_id: str, now: float) -> None:
        self.id = request_id
        self.interrupt: Interrupt | None = None
        self.wake: Callable[[], None] | None = None
        self.queued_at = now
        self.started_at = now
        self.state: Literal["waiting", "running", "done"] = "waiting"
        self._timer: asyncio.TimerHandle | None = None

    def stop(self, why: Interrupt) -> None:
        """Interrupt the request; the first reason counts."""
        if self.interrupt is None:
            self.interrupt = why
            if self.wake is not None:
                self.wake()

    def arm(self, loop: asyncio.AbstractEventLoop, deadline: float | None) -> None:
        """Stop by itself after `deadline` seconds."""
        if deadline is not None:
            self._timer = loop.call_later(max(0.0, deadline), self.stop, "deadline")

    def disarm(self) -> None:
        """The request has ended."""
        self.wake = None
        if self._timer is not None:
            self._timer.cancel()

    def verdict(self, usage: Usage, timings: Timings) -> Finished | Failed:
        """The terminal event of an interrupted request."""
        if self.interrupt is None or self.interrupt == "cancelled":
            return Finished("cancelled", usage, timings)
        retryable, message = _FAILURES[self.interrupt]
        return Failed(self.interrupt, retryable, message, usage)


class Desk:
    """`seats` requests run at once, the others wait in order of arrival."""

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._tickets: dict[str, Ticket] = {}
        self._line: deque[tuple[Ticket, asyncio.Future[None]]] = deque()
        self._empty: list[asyncio.Future[None]] = []
        self.running = 0
        self.waiting = 0

    @property
    def free(self) -> int:
        """Seats that a new request could take at once."""
        return max(0, self._seats - self.running - self.waiting)

    def enter(self, request: EngineRequest) -> Ticket:
        """Register a request; its deadline starts now. Raises EngineError if its id is in use."""
        if request.id in self._tickets:
            raise EngineError(f"request {request.id} is already running")
        loop = asyncio.get_running_loop()
        ticket = Ticket(request.id, loop.time())
        ticket.arm(loop, request.deadline)
        self._tickets[request.id] = ticket
        self.waiting += 1
        return ticket

    async def seat(self, ticket: Ticket) -> bool:
        """Wait for a seat. False if the request was interrupted before it had one."""
        if ticket.interrupt is None and (self.running >= self._seats or self._line):
            turn = asyncio.get_running_loop().create_future()
            ticket.wake = lambda: settle(turn)
            self._line.append((ticket, turn))
            try:
                await turn
            finally:
                ticket.wake = None
                self._line = deque(entry for entry in self._line if entry[0] is not ticket)
        if ticket.interrupt is not None:
            return False
        if ticket.state == "waiting":
            self._take(ticket)
        return True

    def vacate(self, ticket: Ticket) -> None:
        """The engine is done with the request, though its reader may not be: the seat goes to the next. Idempotent."""
        if ticket.state == "running":
            self.running -= 1
        elif ticket.state == "waiting":
            self.waiting -= 1
        ticket.state = "done"
        self._call_next()

    def leave(self, ticket: Ticket) -> None:
        """The request has ended and its reader knows. Idempotent."""
        ticket.disarm()
        self.vacate(ticket)
        if self._tickets.get(ticket.id) is ticket:
            del self._tickets[ticket.id]
        if not self._tickets:
            for waiter in self._empty:
                settle(waiter)
            self._empty.clear()

    def cancel(self, request_id: str) -> bool:
        """Interrupt one request; False if it is not here or has been interrupted before."""
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.interrupt is not None:
            return False
        ticket.stop("cancelled")
        return True

    def stop_all(self, why: Interrupt) -> None:
        """Interrupt every request."""
        for ticket in list(self._tickets.values()):
            ticket.stop(why)

    async def drained(self, timeout_s: float) -> bool:
        """Wait until nobody is left, at most `timeout_s` seconds; True if so."""
        if self._tickets:
            waiter = asyncio.get_running_loop().create_future()
            self._empty.append(waiter)
            await asyncio.wait([waiter], timeout=timeout_s)
        return not self._tickets

    def _take(self, ticket: Ticket) -> None:
        ticket.state = "running"
        ticket.started_at = asyncio.get_running_loop().time()
        self.waiting -= 1
        self.running += 1

    def _call_next(self) -> None:
        """Give free seats away here and now, so that a newcomer cannot slip past those who were woken."""
        while self._line and self.running < self._seats:
            ticket, turn = self._line.popleft()
            if ticket.interrupt is None and not turn.done():
                self._take(ticket)
                turn.set_result(None)
