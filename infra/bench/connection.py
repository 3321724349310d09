"""The load client's end of a connection: HTTP/1.1 read as it comes, content chunks and time stamps counted."""

import asyncio
import re
import time
from typing import Any

STAMP = re.compile(rb"@(\d+)@")
CONTENT = re.compile(rb'"content": ?"(?!")')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked")


class Connection(asyncio.Protocol):
    """Keep-alive HTTP/1.1, one request at a time; bodies by length, in chunks, or to the end of the connection."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.closed = False
        self.first = 0.0
        self.chunks = 0
        self.stamps: list[float] | None = None
        self._buffer = b""
        self._head = b""
        self._done: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._head and self._take == self._piece:
            self._finish()
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("closed"))

    def ask(self, request: bytes, stamps: list[float] | None = None) -> "asyncio.Future[tuple[int, bytes]]":
        """Status and body, once whole. Raises ConnectionError if the server hangs up before."""
        self.first, self.chunks, self.stamps = 0.0, 0, stamps
        self._buffer, self._head, self._line, self._body = b"", b"", b"", []
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        if not self._head:
            self._buffer += data
            head, found, data = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            self._head, self._buffer = head.lower(), b""
            length = LENGTH.search(self._head)
            self._left = int(length[1]) if length else 0
            chunked = CHUNKED.search(self._head)
            self._take = self._take_chunks if chunked else self._take_length if length else self._piece
        self._take(data)

    def _take_length(self, data: bytes) -> None:
        self._left -= len(data)
        self._piece(data)
        if self._left <= 0:
            self._finish()

    def _take_chunks(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        at, pieces, last = 0, [], False
        while (line := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:line].partition(b";")[0], 16)
            if last := not size:
                break
            if line + size + 4 > len(data):
                break
            pieces.append(data[line + 2 : line + 2 + size])
            at = line + size + 4
        self._buffer = data[at:]
        if pieces:
            self._piece(b"".join(pieces))
        if last:
            self._finish()

    def _piece(self, data: bytes) -> None:
        self._body.append(data)
        # A server may cut anywhere: what follows the last line break is looked at once its line is whole.
        lines, newline, self._line = (self._line + data).rpartition(b"\n")
        if not newline:
            return
        seen = len(CONTENT.findall(lines))
        if seen and not self.chunks:
            self.first = time.perf_counter()
        self.chunks += seen
        if self.stamps is not None:
            now = time.monotonic_ns()
            self.stamps += [(now - int(stamp)) / 1e6 for stamp in STAMP.findall(lines)]

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result((int(self._head[9:12]), b"".join(self._body)))
        if b"\r\nconnection: close" in self._head and not self.closed:
            self.closed = True
            self.transport.close()
