"""The exchange over ASGI: bounded reads, sends that feel back-pressure, and a watch for the client's leaving.

Plain ASGI handlers are never told that their client left while they wait for something else. Here a small task waits
for `http.disconnect` and cancels the request, wherever it is: in the queue, before the first token, in mid-stream.
"""

import asyncio
from typing import Any

import structlog

from gateway import journey
from gateway.context import Endpoint, Headers, House
from gateway.http import problems
from gateway.http.connection import CONNECTION, Connection
from gateway.steps.accept import request_id
from shared import telemetry
from shared.errors import ClientGoneError, PayloadTooLargeError, RequestTimeoutError
from shared.tracing import Trace

Scope = Any
Receive = Any
Send = Any

_ROUTES: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}


class AsgiExchange:
    """`gateway.context.Exchange` over one ASGI request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._lines: list[tuple[bytes, bytes]] = scope["headers"]
        self._headers: dict[bytes, bytes] = dict(self._lines)
        self._receive = receive
        self._send = send
        self._connection: Connection | None = (scope.get("extensions") or {}).get(CONNECTION)
        self._watch: asyncio.Task[None] | None = None
        self._served_by: asyncio.Task[Any] | None = None
        self.client = scope["client"][0] if scope.get("client") else ""
        self.started = False
        self.gone = False
        self.status = 0

    def header(self, name: bytes) -> str | None:
        """A header as text; None if absent or not ASCII."""
        value = self._headers.get(name)
        if value is None or not value.isascii():
            return None
        return value.decode("ascii")

    def forwarded(self) -> list[str]:
        """The lines of X-Forwarded-For; bytes that are not ASCII stand for nothing."""
        return [value.decode("ascii", "replace") for name, value in self._lines if name == b"x-forwarded-for"]

    async def read_body(self, limit: int, within_s: float) -> bytes:
        """The whole body, never more than `limit` bytes of it."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(within_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError("the client left while sending its request")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise PayloadTooLargeError(f"The request body is larger than {limit} bytes.")
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise RequestTimeoutError(f"The request body did not arrive within {within_s:g} s.") from None

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers."""
        self.started = True
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes) -> None:
        """A piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def writable(self) -> bool:
        """Nothing that was sent waits for the client; False under a server that does not tell."""
        return self._connection is not None and self._connection.writable

    def send_now(self, data: bytes) -> None:
        """A piece of the body; only while `writable`, when the server's `send` has nothing to wait for."""
        sending = self._send({"type": "http.response.body", "body": data, "more_body": True})
        try:
            sending.send(None)
        except StopIteration:
            return
        sending.close()
        raise RuntimeError("the server's send waits although its socket takes more")

    async def finish(self, data: bytes = b"") -> None:
        """The last piece."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def cancel_when_gone(self) -> None:
        """Start the watch. The body must have been read: only `http.disconnect` can come now."""
        self._served_by = asyncio.current_task()
        self._watch = asyncio.get_running_loop().create_task(self._watch_for_leaving())

    def drop(self) -> None:
        """Treat the client as gone: its connection ends, and the request's task is cancelled."""
        if self._connection is not None:
            self._connection.abort()
        self._left()

    def _left(self) -> None:
        self.gone = True
        if self._served_by is not None:
            self._served_by.cancel("the client left")

    def close(self) -> None:
        """The request is over: stop watching."""
        if self._watch is not None:
            self._watch.cancel()

    async def _watch_for_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()


class Answering:
    """An ASGI application that answers one request by sending it on its journey."""

    def __init__(self, house: House, endpoint: Endpoint) -> None:
        self._house = house
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; what the journey raises before its first byte becomes an error answer."""
        exchange = AsgiExchange(scope, receive, send)
        rid = request_id(exchange.header(b"x-request-id"))
        with self._house.tracing.open(telemetry.SPAN_GATEWAY, exchange.header(b"traceparent")) as trace:
            if trace.trace_id is not None:  # every request is a task of its own: nothing to take back
                structlog.contextvars.bind_contextvars(trace_id=trace.trace_id)
            try:
                await journey.run(self._house, exchange, self._endpoint, rid, trace)
            except ClientGoneError as error:
                trace.failed(error)
            except Exception as error:  # noqa: BLE001 -- the last line of defence; problems logs it
                trace.failed(error)
                await _refuse(exchange, error, rid)
            finally:
                exchange.close()
                self._describe(trace, rid, exchange.status)

    def _describe(self, trace: Trace, rid: str, status: int) -> None:
        if not trace.recording:
            return
        trace.describe(
            {telemetry.HTTP_METHOD: "POST", telemetry.HTTP_ROUTE: _ROUTES[self._endpoint], telemetry.REQUEST_ID: rid}
        )
        if status:  # 0: the client left before it was told anything
            trace.describe({telemetry.HTTP_STATUS: status})


async def _refuse(exchange: AsgiExchange, error: Exception, rid: str) -> None:
    if exchange.started:
        raise error
    status, headers, body = problems.render(error, rid)
    await exchange.start(status, headers)
    await exchange.finish(body)
