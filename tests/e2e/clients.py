"""Clients on sockets of their own: they can stop in any byte of a request or an answer, which no HTTP library lets us do."""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx

from tests.e2e.stack import LLAMA, ROOT, Stack

PROVE = os.environ.get("EVENFLOW_PROVE") == "1"
PATIENCE_S = 60.0

Metrics = dict[str, float]
Event = dict[str, Any]


def chat(text: str, *, model: str = LLAMA, stream: bool = True, **more: Any) -> Event:
    """A chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream, **more}


class Call:
    """One request on its own connection. Everything that waits gives up after PATIENCE_S: a hang is a failure."""

    all: ClassVar[list["Call"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.all.append(self)
        self._reader = reader
        self._writer = writer
        self._rest = b""
        self._ended = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self.error: Event | None = None
        self.events = 0
        self.status_at = self.first_at = self.ended_at = 0.0

    @classmethod
    async def connect(cls, stack: Stack, *, receive_buffer: int = 0) -> "Call":
        """A connection, nothing sent yet; a small `receive_buffer` (bytes) lets the server feel a slow reader early."""
        sock = socket.socket()
        sock.settimeout(0)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", stack.port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
        except BaseException:  # cancelled, too: nobody else knows of this socket
            sock.close()
            raise
        return cls(reader, writer)

    @classmethod
    async def post(cls, stack: Stack, body: Event, *, key: str = "", **options: Any) -> "Call":
        """Connect and send a whole request; the answer is not waited for."""
        call = await cls.connect(stack, **options)
        call.send(stack, body, key=key)
        return call

    def send(self, stack: Stack, body: Event, *, key: str = "", path: str = "/v1/chat/completions") -> None:
        """Write the request."""
        payload = json.dumps(body).encode()
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nhost: evenflow\r\nauthorization: Bearer {key or stack.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(payload)}\r\nconnection: close\r\n\r\n".encode()
            + payload
        )

    def write(self, data: bytes) -> None:
        """Write raw bytes."""
        self._writer.write(data)

    async def head(self) -> int:
        """The status. A stream has it as soon as a worker has accepted."""
        if not self.status:
            async with asyncio.timeout(PATIENCE_S):
                lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            self.status_at = time.monotonic()
            self.headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
            }
            self.status = int(lines[0].split()[1])
        return self.status

    async def body(self) -> Event:
        """The whole of an answer that is not streamed."""
        await self.head()
        pieces = b"".join([piece async for piece in self._pieces()])
        self._writer.close()
        return json.loads(pieces)

    async def next(self) -> Event | None:
        """The next event; None at the end, when `done` tells whether `[DONE]` came and `error` holds an error event."""
        assert await self.head() == 200, await self.body()
        while b"\n\n" not in self._rest:
            piece = await anext(self._pieces(), None)
            if piece is None:
                self.ended_at = time.monotonic()
                self._writer.close()
                return None
            self._rest += piece
        event, _, self._rest = self._rest.partition(b"\n\n")
        if not event.startswith(b"data: "):
            return await self.next()
        assert not self.done, "something came after [DONE]"
        assert self.error is None, "something came after the error"
        if event == b"data: [DONE]":
            self.done = True
            return await self.next()
        decoded: Event = json.loads(event[6:])
        self.error = decoded.get("error")
        self.first_at = self.first_at or time.monotonic()
        self.events += 1
        return decoded

    async def take(self, count: int) -> "Call":
        """Read `count` events."""
        for _ in range(count):
            assert await self.next() is not None, f"the stream ended after {self.events} events: {self.error}"
        return self

    async def finish(self) -> "Call":
        """Read to the end of the stream: it must end in exactly one way."""
        while await self.next() is not None:
            pass
        assert self.done != (self.error is not None), f"done: {self.done}, error: {self.error}"
        return self

    def drop(self, *, reset: bool = False) -> None:
        """Leave: close the connection, politely (FIN) or not (RST)."""
        if reset and not self._writer.is_closing():
            sock: socket.socket = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Decode the body: chunked, or as long as it says. Ends where the body or the connection does."""
        if self._ended:
            return
        async with asyncio.timeout(PATIENCE_S):
            if "content-length" in self.headers:
                self._ended = True
                yield await self._reader.readexactly(int(self.headers["content-length"]))
                return
        while True:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    size = int(await self._reader.readuntil(b"\r\n"), 16)
                    data = (await self._reader.readexactly(size + 2))[:-2]
            except (asyncio.IncompleteReadError, ConnectionResetError):
                self._ended = True  # cut off: whoever reads sees neither [DONE] nor an error event
                return
            if not size:
                self._ended = True
                return
            yield data


async def eventually(holds: Callable[[], Awaitable[bool]], what: str, within_s: float = PATIENCE_S) -> float:
    """Poll until `holds()`; returns the seconds it took. Fails after `within_s`."""
    began = time.monotonic()
    while not await holds():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(0.003)
    return time.monotonic() - began


class Watcher:
    """Looks at a stack from outside, without blocking the test's own clients."""

    def __init__(self, stack: Stack, http: httpx.AsyncClient) -> None:
        self._stack = stack
        self.http = http

    async def metrics(self) -> Metrics:
        """One scrape; histograms are left out."""
        text = (await self.http.get(f"{self._stack.admin}/metrics")).text
        lines = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#" and "_bucket{" not in line)
        return {name: float(value) for name, _, value in lines}

    async def reach(self, what: str, test: Callable[[Metrics], bool], within_s: float = PATIENCE_S) -> float:
        """Wait until the metrics pass `test`; a gateway that is just being restarted passes none."""

        async def holds() -> bool:
            try:
                return test(await self.metrics())
            except (httpx.HTTPError, KeyError):
                return False

        return await eventually(holds, what, within_s)

    async def status(self, path: str) -> int:
        """Status of a GET at the tenants' door; 0 while nobody answers."""
        try:
            return (await self.http.get(f"{self._stack.url}{path}")).status_code
        except httpx.HTTPError:
            return 0

    async def ready(self, within_s: float = PATIENCE_S) -> float:
        """Wait until the stack can serve."""

        async def holds() -> bool:
            return await self.status("/ready") == 200

        return await eventually(holds, "ready again", within_s)


@contextlib.asynccontextmanager
async def watching(stack: Stack) -> AsyncIterator[Watcher]:
    """A watcher of `stack`. Connections that a test left open, by failing or on purpose, end with it."""
    try:
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            yield Watcher(stack, http)
    finally:
        for call in Call.all:
            call.drop()
        Call.all.clear()
        await asyncio.sleep(0)  # transports close in the next turn of the loop


def worker(metrics: Metrics, what: str, wid: str = "w1") -> float:
    """One of a worker's gauges."""
    return metrics[f'evenflow_worker_{what}{{worker="{wid}"}}']


def released(metrics: Metrics) -> bool:
    """The gateway holds nothing for anybody: no request, no place in the line, no stream of a tenant."""
    return not (
        metrics["evenflow_requests_in_flight"] or metrics["evenflow_queue_length"] or metrics["evenflow_streams_held"]
    )


def idle(metrics: Metrics, wid: str = "w1") -> bool:
    """Nothing is held or open, and every slot of the worker is free."""
    return (
        released(metrics)
        and not metrics["evenflow_streams_open"]
        and not worker(metrics, "in_flight", wid)
        and worker(metrics, "slots_free", wid) == worker(metrics, "slots", wid)
    )


def command(stack: Stack, *arguments: str) -> str:
    """Run `evenflow` in the stack's directory, on its store; returns what it printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    environ |= {f"EVENFLOW_{name}": value for name, value in stack.settings.items() if name.startswith("STORE__")}
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        cwd=stack.directory,
        env={**environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout.strip()


async def second_tenant(stack: Stack, watch: Watcher, name: str, *, max_streams: int) -> str:
    """A tenant with a bound of its own; returns its key once the gateway takes it, which must be within a second or so."""
    await asyncio.to_thread(command, stack, "tenant", "create", name, "--max-streams", str(max_streams))
    key = await asyncio.to_thread(command, stack, "key", "create", name, "test")

    async def known() -> bool:
        answer = await watch.http.get(f"{stack.url}/v1/models", headers={"authorization": f"Bearer {key}"})
        return answer.status_code == 200

    await eventually(known, "the new key is known", within_s=5)
    return key


def family(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def alive(pid: int) -> bool:
    """It runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
