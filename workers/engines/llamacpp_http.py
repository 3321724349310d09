"""A small, strict HTTP/1.1 client for llama.cpp's own server on the loopback: no thread per stream, cancel by closing.

The native `POST /completion` is used, not the OpenAI-shaped path: only it names the ids of tokens that a draft
proposed.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

import httptools
import msgspec

from shared.errors import EngineError

_E = TypeVar("_E", bound=asyncio.Protocol)
_LOOK_S: Final = 0.002
_MAX_LINE: Final = 1 << 20
_MAX_BODY: Final = 64 << 20


class ServerTimings(msgspec.Struct):
    """The server's counters for one request so far; times in milliseconds."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0


class PromptProgress(msgspec.Struct):
    """`processed` of `total` prompt tokens are in the cache, `cache` of them from before."""

    total: int
    cache: int
    processed: int
    time_ms: float = 0.0


class Alternative(msgspec.Struct):
    """One token with its bytes and natural logarithm of its probability."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class Probability(Alternative):
    """The chosen token and the best alternatives at its position."""

    top_logprobs: list[Alternative] = []


class Chunk(msgspec.Struct):
    """One event of `POST /completion`. While `tokens_predicted` is 0, `tokens` means nothing."""

    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int = 0
    timings: ServerTimings | None = None
    prompt_progress: PromptProgress | None = None
    completion_probabilities: list[Probability] = []
    error: dict[str, Any] | None = None


_decode_chunk = msgspec.json.Decoder(Chunk).decode


class ServerError(EngineError):
    """The server refused a request. `status` is HTTP's, `kind` llama.cpp's own."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind


class Address(msgspec.Struct, frozen=True):
    """Where a server listens, and the key it asks for."""

    host: str
    port: int
    key: str

    def head(self, method: str, path: str, size: int) -> bytes:
        """A request's head."""
        lines = (
            f"{method} {path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            f"Authorization: Bearer {self.key}",
            "Content-Type: application/json",
            f"Content-Length: {size}",
            "Connection: close",
        )
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


_open: dict[Address, set["_Line"]] = {}
"""Our connections to each server, from before they are made until their sockets are closed."""


class _Line:
    """One connection's place in `_open`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        _open.setdefault(address, set()).add(self)

    def close(self) -> None:
        lines = _open.get(self._address, set())
        lines.discard(self)
        if not lines:
            _open.pop(self._address, None)


async def hung_up(address: Address, within_s: float) -> None:
    """Until every connection of ours to that server is closed; raises TimeoutError if that takes longer.

    A server that is told to end waits for its clients to hang up, and holds the interpreter meanwhile: what our loop
    has not closed by then stays open, and both wait for ever.
    """
    async with asyncio.timeout(within_s):
        while address in _open:  # noqa: ASYNC110 -- once in the life of a server
            await asyncio.sleep(_LOOK_S)
    await asyncio.sleep(0)  # a socket is closed right after its protocol has heard of it


async def _connect(address: Address, make: Callable[["_Line"], _E]) -> _E:
    """A new exchange on a connection of its own. Raises OSError."""
    line, made = _Line(address), False

    def protocol() -> _E:
        nonlocal made
        made = True
        return make(line)

    try:
        _, exchange = await asyncio.get_running_loop().create_connection(protocol, address.host, address.port)
    except BaseException:
        if not made:
            line.close()
        raise
    return exchange


class _Exchange(asyncio.Protocol):
    """One request, one response, one connection."""

    def __init__(self, request: bytes, line: _Line) -> None:
        self._request = request
        self._line_out = line
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body = bytearray()
        self.status = 0
        self.complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        transport.write(self._request)  # type: ignore[attr-defined]

    def connection_lost(self, _exc: Exception | None) -> None:
        self._line_out.close()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, msgspec.MsgspecError) as error:
            self.fail(error)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if len(self._body) + len(data) > _MAX_BODY:
            self.close()
        self._body += data

    def on_message_complete(self) -> None:
        self.complete = True
        self.close()

    def fail(self, error: Exception) -> None:
        """The response makes no sense."""
        self.status = -1
        self._body[:] = str(error).encode()
        self.close()

    def close(self) -> None:
        """Give the connection up at once; to the server that means cancel."""
        if self._transport is not None:
            self._transport.abort()

    def problem(self) -> ServerError:
        """What the server said instead of an answer."""
        if self.status == 200:  # noqa: PLR2004 - HTTP's OK
            return ServerError(502, "the connection ended before the answer did")
        try:
            error = msgspec.json.decode(bytes(self._body), type=dict[str, Any])["error"]
            return ServerError(self.status, str(error["message"]), str(error.get("type", "")))
        except (msgspec.MsgspecError, KeyError, TypeError):
            return ServerError(self.status or 500, f"status {self.status}, {bytes(self._body[:200])!r}")


class _Call(_Exchange):
    def __init__(self, request: bytes, line: _Line, done: asyncio.Future[None]) -> None:
        super().__init__(request, line)
        self._done = done

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._done.done():
            self._done.set_result(None)

    def result(self) -> Any:
        if self.status == 200 and self.complete:  # noqa: PLR2004 - HTTP's OK
            return msgspec.json.decode(bytes(self._body))
        raise self.problem()


async def call(address: Address, path: str, body: Any = None) -> Any:
    """One JSON request and its JSON answer. Raises ServerError, OSError."""
    loop = asyncio.get_running_loop()
    data = b"" if body is None else msgspec.json.encode(body)
    done: asyncio.Future[None] = loop.create_future()
    request = address.head("GET" if body is None else "POST", path, len(data)) + data
    exchange = await _connect(address, lambda line: _Call(request, line, done))
    try:
        await done
    finally:
        exchange.close()
    return exchange.result()


class Completion(_Exchange):
    """A streamed `POST /completion`. `closed` resolves as soon as the server is done or the connection is gone."""

    def __init__(self, request: bytes, line: _Line, closed: asyncio.Future[None]) -> None:
        super().__init__(request, line)
        self._line = bytearray()
        self._chunks: deque[Chunk] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._lost = False
        self._interrupted = False
        self._finished = False
        self.closed = closed

    @classmethod
    async def open(cls, address: Address, body: dict[str, Any]) -> "Completion":
        """Send the request. Raises OSError if the server cannot be reached."""
        loop = asyncio.get_running_loop()
        data = msgspec.json.encode(body)
        closed: asyncio.Future[None] = loop.create_future()
        request = address.head("POST", "/completion", len(data)) + data
        return await _connect(address, lambda line: cls(request, line, closed))

    def on_body(self, data: bytes) -> None:
        """A piece of the stream: any number of whole and cut lines."""
        if self.status != 200:  # noqa: PLR2004 - HTTP's OK
            super().on_body(data)
            return
        self._line += data
        *lines, rest = self._line.split(b"\n")
        self._line = rest
        if len(rest) > _MAX_LINE:
            self.fail(ValueError("a line without an end"))
            return
        for line in lines:
            if line.startswith(b"data: {"):
                chunk = _decode_chunk(line[6:])
                self._finished = self._finished or chunk.stop
                self._chunks.append(chunk)
            elif line.startswith(b"error: "):
                self._chunks.append(Chunk(error=msgspec.json.decode(line[7:], type=dict[str, Any])))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed the connection, or we did."""
        super().connection_lost(exc)
        self._lost = True
        if not self.closed.done():
            self.closed.set_result(None)
        self._wake()

    def interrupt(self) -> None:
        """Stop now: the reader gets nothing more, the server hears by the closed connection."""
        self._interrupted = True
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> Chunk | None:
        """The next chunk; None after the last one or an interrupt. Raises ServerError."""
        while not self._chunks and not self._interrupted:
            if self._finished:
                return None
            if self._lost:
                raise self.problem()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._interrupted:
            return None
        chunk = self._chunks.popleft()
        if chunk.error is not None:
            raise ServerError(
                int(chunk.error.get("code", 500)), str(chunk.error.get("message")), str(chunk.error.get("type", ""))
            )
        return chunk


async def reachable(address: Address) -> bool:
    """Whether the server answers at all."""
    with contextlib.suppress(OSError, EngineError):
        await call(address, "/health")
        return True
    return False
