"""Where one request's events wait for its client: bounded, shared by the request's choices, one reader.

While the reader waits and the client's socket takes more, events go `straight` from the bus to the socket, which spares
a task's turn per token. The bus never waits for a client. What a client has not taken yet lies here; past the bound the
request is over: its streams are cancelled at the workers, what lies here is still delivered, then comes the error
`client_too_slow`.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from shared.wire import Event, Text

if TYPE_CHECKING:
    from collections.abc import Callable

_EVENT_BYTES = 96  # what an event costs beside its text

Item = tuple[int, tuple[Event, ...]]


class Inbox:
    """Events of one request, in order per choice; one reader."""

    def __init__(self, limit_bytes: int, now: float) -> None:
        self.limit_bytes = limit_bytes
        self.pending_bytes = 0
        self.too_slow = False
        self.quiet_since = now
        """Since when, as far as `look` has seen, nothing was taken."""
        self.stuck_since = now
        """The same, but only while something lies here."""
        self.straight: Callable[[int, tuple[Event, ...]], bool] | None = None
        """Takes events while the reader waits and nothing lies here; says False to what it cannot take now."""
        self._handed_bytes = 0
        self._moved = False
        self._items: deque[Item] = deque()
        self._failure: Exception | None = None
        self._accepted = False
        self._nudged = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """More than the bound lies here."""
        return self.pending_bytes > self.limit_bytes

    def put(self, choice: int, events: tuple[Event, ...]) -> int:
        """Add events; returns by how many bytes the inbox grew. Never waits, never refuses, never raises."""
        if self.straight is not None and self._waiter is not None and not self._items:
            try:
                if self.straight(choice, events):
                    self._moved = True
                    return 0
            except Exception as error:  # noqa: BLE001 -- whatever it is, it belongs to the reader and not to the bus
                self.fail(error)
                return 0
        grown = _EVENT_BYTES * len(events)
        for event in events:
            if type(event) is Text:
                grown += len(event.text)
        self._items.append((choice, events))
        self.pending_bytes += grown
        self._wake()
        return grown

    def accepted(self) -> None:
        """A worker has taken the request: its status can go out."""
        self._accepted = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more events will come: whoever reads gets `error` after what lies here. The first failure stands."""
        if self._failure is None:
            self._failure = error
        self._wake()

    def nudge(self) -> None:
        """Let a waiting `take` return with nothing, so that its reader can keep the connection alive."""
        if self._waiter is not None:
            self._nudged = True
            self._wake()

    async def ready(self) -> None:
        """Until there is something to say to the client. Raises what `fail` was given if that came first."""
        while not self._accepted and not self._items:
            if self._failure is not None:
                raise self._failure
            await self._wait()

    async def take(self) -> list[Item]:
        """Everything that lies here; empty only after a nudge. Raises what `fail` was given once nothing is left.

        It goes on counting as pending until `emptied`, when the client's socket has taken it.
        """
        while not self._items:
            if self._failure is not None:
                raise self._failure
            await self._wait()
            if self._nudged:
                self._nudged = False
                break
        items = list(self._items)
        self._items.clear()
        self._handed_bytes = self.pending_bytes
        return items

    def emptied(self) -> int:
        """What `take` gave out has left: how many bytes that were. A sign that the client lives."""
        gone, self._handed_bytes = self._handed_bytes, 0
        self.pending_bytes -= gone
        self._moved = True
        return gone

    def drop(self) -> int:
        """Let go of what nobody has taken yet: how many bytes that were. What `take` gave out stays with its reader."""
        self._items.clear()
        gone = self.pending_bytes - self._handed_bytes
        self.pending_bytes = self._handed_bytes
        return gone

    @property
    def waiting_bytes(self) -> int:
        """What `drop` would let go of."""
        return self.pending_bytes - self._handed_bytes

    def look(self, now: float) -> None:
        """Note what moved since the last look; the owner calls this every second or so."""
        if self._moved:
            self._moved = False
            self.quiet_since = self.stuck_since = now
        elif not self.pending_bytes:
            self.stuck_since = now

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
