"""What the steps of one request share: the exchange with the client, the house around it, and the request's own record.

Below the steps, so that they need nothing from each other nor from the door.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from gateway.api import Ask
from gateway.core.fleet import Fleet, Pool
from gateway.core.freshness import Freshness
from gateway.core.guessing import Guesses
from gateway.core.networks import Networks
from gateway.core.quotas import Reservation
from gateway.services.inbox import Inbox
from gateway.services.keyring import Keyring, Principal
from gateway.services.last_used import LastUsed
from gateway.services.meters import Meters
from gateway.services.own_usage import OwnUsage
from gateway.services.pulse import PulseWatch
from gateway.services.quotas import Allowances, Room, Size
from gateway.services.streams import Attempt, Streams
from gateway.services.turnstile import Turnstile
from gateway.services.usage_writer import Bill, UsageWriter
from shared.settings import ModelSettings, Settings
from shared.tracing import NO_TRACE, Trace, Tracing

Endpoint = Literal["chat", "completion"]
Headers = list[tuple[bytes, bytes]]


class Exchange(Protocol):
    """One HTTP request and its answer, as the steps see it."""

    client: str
    started: bool
    gone: bool

    def header(self, name: bytes) -> str | None:
        """A request header by its lower-case name; None if it is absent or not text."""
        ...

    def forwarded(self) -> list[str]:
        """The lines of X-Forwarded-For, as they came."""
        ...

    async def read_body(self, limit: int, within_s: float) -> bytes:
        """The whole body. Raises PayloadTooLargeError past `limit`, RequestTimeoutError, ClientGoneError."""
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers."""
        ...

    async def send(self, data: bytes) -> None:
        """Send a piece of the body; waits while the client's socket is full."""
        ...

    @property
    def writable(self) -> bool:
        """The client's socket takes more at once."""
        ...

    def send_now(self, data: bytes) -> None:
        """Send a piece of the body without waiting; only while `writable`."""
        ...

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece."""
        ...

    def cancel_when_gone(self) -> None:
        """From now on, cancel this task as soon as the client leaves."""
        ...

    def drop(self) -> None:
        """End the connection, whatever still waits to be sent, and cancel this task as if the client had left."""
        ...


class House(msgspec.Struct, frozen=True, eq=False):
    """Everything that requests share.

    `concerns` say what an operator should know though requests are served, or ""; `obstacles` why none should come.
    `trusted` are the proxies whose word on where a request comes from is taken.
    """

    settings: Settings
    epoch: str
    created: int
    keyring: Keyring
    freshness: Freshness
    trusted: Networks
    guesses: Guesses
    last_used: LastUsed
    fleet: Fleet
    streams: Streams
    turnstile: Turnstile
    quotas: Allowances
    meters: Meters
    pulse: PulseWatch
    tracing: Tracing
    usage: UsageWriter
    own_usage: OwnUsage
    draining: asyncio.Event
    concerns: list[Callable[[], str]] = []
    obstacles: list[Callable[[], str]] = []


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A request as its headers show it. `arrived` and `deadline` by the loop's clock, `created` in Unix seconds.

    `request_id` may be the client's, who may use it twice; `own_id` is ours and unique.
    """

    request_id: str
    own_id: str
    endpoint: Endpoint
    arrived: float
    deadline: float
    created: int
    trace: Trace


class Passage(msgspec.Struct, eq=False, kw_only=True):
    """A request whose key and body are good, on its way; the later steps fill in the rest.

    `queued_from` is when it first asked for a turn, `queued_s` the longest wait of its choices that got one. `relaying`
    is the span of the relay, where its first token is marked.
    """

    arrival: Arrival
    principal: Principal
    ask: Ask
    body_bytes: int
    inbox: Inbox
    bill: Bill
    pool: Pool = ("", "")
    room: Room = Room(0, 0)
    size: Size = Size(0, 0)
    reservation: Reservation | None = None
    limits: ModelSettings
    attempts: list[Attempt] = []
    first_token_at: float | None = None
    queued_from: float | None = None
    queued_s: float | None = None
    relaying: Trace = NO_TRACE
