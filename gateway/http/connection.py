"""One client connection: uvicorn's, with bounds on all that is not a wanted body.

uvicorn bounds how much of a body waits to be read. It does not bound a head or trailers without an end, requests that
pile up behind the one being served, or the rest of a body whose request has its answer already: each of them is memory
or time that a client takes without a key. What is over a bound is refused, and the connection closed.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Iterable
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.http import problems
from gateway.steps.accept import uuid7
from shared.errors import HeadTooLargeError, HttpError, InvalidRequestError

HEAD_BYTES: Final = 64 * 1024
"""Most bytes of one message that are not its body: request line, headers, chunk framing, trailers."""
FRAMING_PER_BYTE: Final = 8
"""Chunk framing that goes with one byte of body, on top of that: a chunk of a single byte takes 5."""
PIPELINED: Final = 16
"""Most requests that wait for the answer to an earlier one on their connection."""
CONNECTION: Final = "evenflow.connection"
"""The ASGI extension that gives an application its connection: whether it is `writable`, and `abort`."""
UNWANTED_BYTES: Final = 1024 * 1024
"""What is still read of a body after its request was answered. Reading none of it would have the kernel reset the
connection, and many a client, still sending, would never see the answer that tells it why."""
_TELLS: Final = sys.platform == "linux"
_INT, _LONG = struct.Struct("=i"), struct.Struct("=Q")
_ACKED_AT: Final = 120
"""Where `tcpi_bytes_acked` stands in `struct tcp_info` (linux/tcp.h, since 4.2)."""


class Connection(HttpToolsProtocol):
    """See the module. A head, or the rest of an unwanted body, may take as long as an idle connection may live."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: it has to send something in time."""
        super().connection_made(transport)
        self._in_head = True
        self._in_message = False
        self._framing = 0  # bytes of this message that are not body
        self._body = 0  # bytes of this message that are
        self._all_bodies = 0
        self._unwanted = 0
        self._timer: asyncio.TimerHandle | None = None
        self._cycles: list[RequestResponseCycle] = []
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_watch()
        self._tell_all()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, then look at what came."""
        bodies = self._all_bodies
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._framing += len(data) - (self._all_bodies - bodies)
        if self._framing > HEAD_BYTES + FRAMING_PER_BYTE * self._body:
            self._refuse(HeadTooLargeError(f"The request has more than {HEAD_BYTES} bytes of headers."))
            return
        self._watch()

    @property
    def writable(self) -> bool:
        """Nothing that was sent waits for the client: `send` has nothing to wait for."""
        return not self.flow.write_paused

    def taken(self) -> int | None:
        """How many bytes the client's side has acknowledged in all, while more wait for it; None while none do.

        Only the kernel knows, and Linux tells; elsewhere one that is being closed counts as taking nothing.
        """
        sock = self.transport.get_extra_info("socket")
        if sock is None or not _TELLS:
            return 0 if self.transport.is_closing() else None
        try:
            waiting = _INT.unpack(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))[0]
            if not waiting and not self.transport.get_write_buffer_size():
                return None
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + _LONG.size)
        except OSError:  # it is gone already
            return None
        return int(_LONG.unpack_from(info, _ACKED_AT)[0])

    def abort(self) -> None:
        """Close without waiting for the client to take what was sent."""
        self.transport.abort()

    # What a parser's callback raises ends the parsing; `data_received` then calls `send_400_response`.

    def on_message_begin(self) -> None:
        """A request line begins."""
        self._in_head = self._in_message = True
        self._framing = self._body = self._unwanted = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole. Raises InvalidRequestError if too many requests wait already."""
        self._in_head = False
        if len(self.pipeline) >= PIPELINED:
            raise InvalidRequestError("Too many requests at once on one connection.")
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item] # ours, and no dictionary
        super().on_headers_complete()
        if (cycle := self._newest()) is not None:
            self._cycles = [earlier for earlier in self._cycles if not earlier.response_complete]
            self._cycles.append(cycle)

    def on_body(self, body: bytes) -> None:
        """A piece of body. Raises InvalidRequestError if nobody wants it, and more of it came than is put up with."""
        self._body += len(body)
        self._all_bodies += len(body)
        if self.cycle.response_complete:
            self._unwanted += len(body)
            if self._unwanted > UNWANTED_BYTES:
                raise InvalidRequestError("The request was answered before its body.")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._in_message = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP, or over a bound."""
        self._refuse(InvalidRequestError(msg, code="invalid_http"))

    def _refuse(self, error: HttpError) -> None:
        """Say why, unless that would end up inside or behind an answer, and close."""
        cycle = self._newest()
        open_request = cycle is not None and not cycle.response_complete
        answering = bool(self.pipeline) or (cycle is not None and open_request and cycle.response_started)
        if not answering and not self._unwanting():
            self.transport.write(_bytes(error, self.server_state.default_headers))
        self.transport.close()
        self._tell_all()

    def _tell_all(self) -> None:
        """Every request of this connection, queued ones and the one being served: nobody reads its answer any more.

        uvicorn tells only the newest; the others' tasks would go on, and write into a closed connection.
        """
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _newest(self) -> RequestResponseCycle | None:
        """The request whose head came last; None before the first."""
        return self.cycle

    def _unwanting(self) -> bool:
        """Whether the body that comes belongs to a request that has its answer."""
        cycle = self._newest()
        return cycle is not None and cycle.response_complete and self._in_message and not self._in_head

    def _watch(self) -> None:
        """Run the clock while a head, or the rest of an unwanted body, is due."""
        if not self._in_head and not self._unwanting():
            self._stop_watch()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _stop_watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Stalls:
    """Connections whose client takes nothing of what was sent, for longer than `patience_s`: they end.

    That holds for open ones as for those that are being closed: a transport waits with its end for what it has still to
    send, for ever if need be. (The kernel's own bound, TCP_USER_TIMEOUT, will not do: on some kernels its clock runs on
    while a slow reader makes room now and then.)
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._marks: dict[Connection, tuple[int, float]] = {}

    def look(self, now: float, connections: Iterable[object]) -> None:
        """End those that have stood still for too long. `now` in seconds; call it every second or so."""
        marks: dict[Connection, tuple[int, float]] = {}
        for one in connections:
            if not isinstance(one, Connection) or (taken := one.taken()) is None:
                continue
            before, since = self._marks.get(one, (-1, now))
            marks[one] = (taken, since if taken == before else now)
            if now - marks[one][1] > self._patience_s:
                one.abort()
        self._marks = marks


def _bytes(error: HttpError, more: list[tuple[bytes, bytes]]) -> bytes:
    """A whole answer, status line to body."""
    status, headers, body = problems.render(error, uuid7())
    lines = [name + b": " + value + b"\r\n" for name, value in [*more, *headers, (b"connection", b"close")]]
    return b"".join([STATUS_LINE[status], *lines, b"\r\n", body])
