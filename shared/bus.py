"""The only place that imports nats: a connection that heals, and says so.

Handlers are coroutines that never wait for anything but a publish (which only appends to a buffer): the messages of one
subscription are handled one after the other, so whoever waits in a handler holds up every stream behind it.

Three things about nats-py 2.16 are worked around here: `flush()` is no barrier (its PING overtakes pending
subscriptions), so it runs twice; an exception out of a connection callback stops the reconnecting, so they are wrapped;
and reconnects have no jitter, so the wait is drawn per process.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared import subjects
from shared.errors import BusError, ProtocolError, SettingsError
from shared.identity import Identity

log = structlog.get_logger("bus")

NO_RESPONDERS = 503
STORED = "Nats-Stream"
"""Header of a message that JetStream repeats out of a stream."""
_FLUSH_S = 5.0
_EOF_REMARK = "returning true from eof_received() has no effect when using ssl"
_AGAIN_S = 0.1


class Delivery(msgspec.Struct, frozen=True):
    """One message as it came: `status` is 503 when the server says that nobody listens where we published."""

    subject: str
    data: bytes
    reply: str
    status: int
    headers: dict[str, str] | None = None


Handler = Callable[[Delivery], Awaitable[None]]


def _nothing() -> None:
    """Default for a connection callback nobody asked for."""


class Bus:
    """One connection to NATS, shared by everything in a process."""

    def __init__(self, name: str, epoch: str) -> None:
        self.name = name
        self.inbox = subjects.inbox(name, epoch)
        self.on_disconnect: Callable[[], None] = _nothing
        self.on_reconnect: Callable[[], None] = _nothing
        self.handler_errors = 0
        self._client = Client()
        self._closing = False
        self._was_connected = False
        self._first_error: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(
        self, url: str, *, identity: Identity | None = None, credentials: str = "", wait_s: float = 10.0
    ) -> None:
        """Connect to one of the servers in `url` (separated by commas) within `wait_s`, then reconnect for ever.

        With an `identity`, TLS comes before the first byte of NATS, and the server must be of the same authority.

        Raises:
            BusError: it cannot be done; the message says where and why.
            SettingsError: there is no URL, or the identity's files cannot be used.
        """
        logging.getLogger("asyncio").addFilter(_means_something)  # once, however often it is added
        servers = [server.strip() for server in url.split(",") if server.strip()]
        if not servers:
            raise SettingsError("nats.url: is not set; only `evenflow up` starts a server of its own")
        options: dict[str, Any] = {}
        if identity is not None:
            options |= {"tls": identity.context(), "tls_handshake_first": True, "nkeys_seed": str(identity.seed)}
        if credentials:
            options["user_credentials"] = credentials
        try:
            # nats-py takes "reconnect for ever" to mean the first time, too.
            await _within(
                wait_s,
                self._client.connect(
                    servers,
                    name=self.name,
                    inbox_prefix=self.inbox,
                    error_cb=self._error,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    allow_reconnect=True,
                    connect_timeout=2,
                    reconnect_time_wait=random.uniform(0.1, 0.25),  # type: ignore[arg-type] # noqa: S311 # any number of seconds
                    max_reconnect_attempts=-1,
                    ping_interval=5,
                    max_outstanding_pings=2,
                    pending_size=32 * 1024 * 1024,
                    **options,
                ),
            )
        except (OSError, ValueError, nats.errors.Error, TimeoutError) as error:
            await self._discard()
            places = ", ".join(map(_without_secret, servers))
            why = _reason(self._first_error or error)
            raise BusError(f"cannot reach NATS at {places} within {wait_s:g} s: {why}") from error
        self._was_connected = True

    async def _discard(self) -> None:
        """Close a client that never connected, which nats-py did not provide for."""
        self._closing = True
        with contextlib.suppress(AssertionError, OSError, nats.errors.Error):
            await self._client.close()

    @property
    def connected(self) -> bool:
        """True while the connection stands."""
        return self._client.is_connected

    @property
    def max_payload(self) -> int:
        """Largest message in bytes that the server takes."""
        return int(self._client.max_payload)

    async def subscribe(self, subject: str, handler: Handler, *, stored: bool = False) -> None:
        """Call `handler` for each message, in order. What it raises is logged and counted; the rest still comes.

        Unless `stored` ones are expected, a message out of a stream is refused: who may ask for one says where it goes,
        and could have the server itself repeat a record on a subject on which the asker may not speak.
        """

        async def guarded(message: Msg) -> None:
            try:
                await handler(_delivery(message, stored=stored))
            except Exception as error:  # noqa: BLE001 -- told below
                self._handler_failed(message.subject, error)

        await self._client.subscribe(
            subject, cb=guarded, pending_msgs_limit=512 * 1024, pending_bytes_limit=256 * 1024 * 1024
        )

    async def listen(self, subject: str, handler: Callable[[Delivery], None]) -> None:
        """The same for a handler that waits for nothing: it is called in the turn in which the message was read."""

        def guarded(message: Msg) -> None:
            try:
                handler(_delivery(message))
            except Exception as error:  # noqa: BLE001 -- told below
                self._handler_failed(message.subject, error)

        await self._client.subscribe(subject, future=_Straight(guarded))  # type: ignore[arg-type] # see there

    def _handler_failed(self, subject: str, error: Exception) -> None:
        self.handler_errors += 1
        if isinstance(error, ProtocolError | msgspec.DecodeError):
            log.warning("message_refused", subject=subject, error=str(error))
        else:
            log.error("handler_failed", subject=subject, exc_info=error)

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send without waiting for anybody. While disconnected it waits in a bounded buffer. Raises BusError."""
        try:
            await self._client.publish(subject, payload, reply=reply, headers=headers)
        except nats.errors.Error as error:
            raise BusError(f"cannot publish on {subject}: {error!r}") from error

    async def request(self, subject: str, payload: bytes, *, within_s: float = _FLUSH_S) -> bytes:
        """The answer to `payload`. Raises BusError if none comes in time."""
        try:
            return bytes((await self._client.request(subject, payload, timeout=within_s)).data)
        except (nats.errors.Error, TimeoutError) as error:
            raise BusError(f"no answer on {subject}: {error!r}") from error

    async def barrier(self) -> None:
        """Return once the server has seen everything that was sent before. Raises BusError after 5 s."""
        try:
            await self._client.flush(timeout=int(_FLUSH_S))
            await self._client.flush(timeout=int(_FLUSH_S))
        except (nats.errors.Error, TimeoutError) as error:
            raise BusError(f"no answer from NATS: {error!r}") from error

    async def close(self) -> None:
        """Send what is pending, then close for good. Never raises."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        try:
            if self._client.is_connected:
                await self._client.flush(timeout=2)
            await self._client.close()
        except (OSError, RuntimeError, nats.errors.Error, TimeoutError) as error:
            # RuntimeError: uvloop's word for a socket that is closed already, where asyncio only logs.
            log.debug("close_failed", error=repr(error))

    async def _disconnected(self) -> None:
        if self._closing:
            return
        log.warning("bus_disconnected")
        self._guarded(self.on_disconnect)

    async def _reconnected(self) -> None:
        """Tell the owner only after the socket was drained: until then peers look more silent than they are."""
        for task in self._tasks:
            task.cancel()  # of a connection before this one
        task = asyncio.get_running_loop().create_task(self._settle())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self) -> None:
        """Ask again until the server answers, or the connection goes too: nobody else would say that it is back."""
        while self.connected:
            try:
                await self.barrier()
            except BusError as error:
                log.warning("bus_unsettled", error=str(error))
                await asyncio.sleep(_AGAIN_S)
                continue
            log.info("bus_reconnected")
            self._guarded(self.on_reconnect)
            return

    async def _error(self, error: Exception) -> None:
        if self._was_connected:
            log.warning("bus_error", error=repr(error))
        else:
            self._first_error = error

    def _guarded(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            log.exception("connection_callback_failed")


class _Straight:
    """What nats-py takes for the future of the only answer to a request, and never forgets.

    It hands a message to a future's `set_result` as soon as it has parsed it. A callback has a queue and a task of its
    own between: a turn of the loop for every message (nats-py 2.16).
    """

    def __init__(self, take: Callable[[Msg], None]) -> None:
        self.set_result = take

    def cancelled(self) -> bool:
        """Never: it listens as long as the connection lives."""
        return False


def _delivery(message: Msg, *, stored: bool = False) -> Delivery:
    headers = message.headers
    status = 0
    if headers:
        if STORED in headers and not stored:
            raise ProtocolError("a record of a stream, where none belongs")
        code = headers.get("Status", "")
        status = int(code) if code.isdigit() else 0
    return Delivery(message.subject, message.data, message.reply, status, headers)


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` in at most about that time. Raises TimeoutError, or what the work raises.

    `asyncio.timeout` cancels once, and `asyncio.wait_for`, inside nats-py, loses a cancellation that comes in the same
    turn as its own result (Python before 3.12): nats-py would then go on for ever. So it is told until it has ended.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_AGAIN_S)
    task.result()


def _means_something(record: logging.LogRecord) -> bool:
    """Not so: asyncio's remark, whenever a TLS connection ends, on what its own stream protocol returns.

    nats-py upgrades a stream that began without TLS, so the stream says "keep open"; asyncio closes it all the same.
    """
    return record.msg != _EOF_REMARK


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "nothing answered as a NATS server that knows this identity would"
    return getattr(error, "strerror", None) or str(error) or repr(error)


def _without_secret(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
