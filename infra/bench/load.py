"""A load client for any OpenAI-compatible endpoint: raw asyncio, one connection per request, standard library only.

Every run prints one JSON line. CPU seconds and memory of the server's processes are read from /proc around the run: the
figures that a busy machine disturbs least. Loads are bounded in count and time and go where `--url` says.

    sat     closed loop of whole answers: requests/s at saturation
    rate    open loop of whole answers: latency at a low rate
    stream  closed loop of streams that come as fast as they can: chunks/s
    ttfc    open loop of streams: time to the first content chunk
    paced   open streams whose chunks carry `@<CLOCK_MONOTONIC ns>@`: delay of each chunk, CPU per chunk
    hold    opens streams and keeps them: memory with so many open
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TICKS = os.sysconf("SC_CLK_TCK")
STAMP = re.compile(rb"@(\d+)@")
CONTENT = re.compile(rb'"content": ?"(?!")')


class Connection(asyncio.Protocol):
    """Keep-alive HTTP/1.1, one request at a time; bodies by length or in chunks."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.closed = False
        self.first = 0.0
        self.chunks = 0
        self.stamps: list[float] | None = None
        self._buffer = b""
        self._done: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("closed"))

    def ask(self, request: bytes, stamps: list[float] | None = None) -> "asyncio.Future[tuple[int, bytes]]":
        self.first, self.chunks, self.stamps = 0.0, 0, stamps
        self._buffer, self._head, self._body = b"", b"", []
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        if not self._head:
            self._buffer += data
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            self._head = head.lower()
            self._chunked = b"transfer-encoding: chunked" in self._head
            length = re.search(rb"content-length: *(\d+)", self._head)
            self._left = int(length[1]) if length else 0
            self._buffer, data = b"", rest
        (self._take_chunks if self._chunked else self._take_length)(data)

    def _take_length(self, data: bytes) -> None:
        self._left -= len(data)
        self._piece(data)
        if self._left <= 0:
            self._finish()

    def _take_chunks(self, data: bytes) -> None:
        data = self._buffer + data
        at = 0
        while (line := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:line], 16)
            if not size:
                self._finish()
                return
            if line + size + 4 > len(data):
                break
            self._piece(data[line + 2 : line + 2 + size])
            at = line + size + 4
        self._buffer = data[at:]

    def _piece(self, data: bytes) -> None:
        self._body.append(data)
        seen = len(CONTENT.findall(data))
        if seen and not self.chunks:
            self.first = time.perf_counter()
        self.chunks += seen
        if self.stamps is not None:
            now = time.monotonic_ns()
            self.stamps += [(now - int(stamp)) / 1e6 for stamp in STAMP.findall(data)]

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result((int(self._head[9:12]), b"".join(self._body)))


class Load:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        address = urlsplit(options.url)
        self.host, self.port = address.hostname or "127.0.0.1", address.port or 80
        self.path = address.path.rstrip("/") + "/chat/completions"
        self.idle: list[Connection] = []
        self.errors: dict[str, int] = {}
        self.stamps: list[float] = []

    def request(self, *, stream: bool) -> bytes:
        body = {
            "model": self.options.model,
            "messages": [{"role": "user", "content": "Say hello to the benchmark, please."}],
            "max_tokens": self.options.max_tokens,
            **({"stream": True} if stream else {}),
        }
        text = json.dumps(body).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Authorization: Bearer {self.options.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        return head.encode() + text

    async def once(self, request: bytes, *, stream: bool) -> tuple[float, float, int] | None:
        """Seconds in all, seconds to the first content, content chunks; None and an entry in `errors` if it failed."""
        while self.idle and self.idle[-1].closed:
            self.idle.pop()
        loop = asyncio.get_running_loop()
        connection = (
            self.idle.pop() if self.idle else (await loop.create_connection(Connection, self.host, self.port))[1]
        )
        began = time.perf_counter()
        try:
            async with asyncio.timeout(120):
                status, body = await connection.ask(request, self.stamps if self.options.mode == "paced" else None)
        except (OSError, TimeoutError) as error:
            connection.transport.abort()
            return self.failed(type(error).__name__)
        took = time.perf_counter() - began
        self.idle.append(connection)
        if status != 200:
            return self.failed(f"HTTP {status}")
        if stream and not body.endswith(b"data: [DONE]\n\n"):
            return self.failed("no [DONE]")
        if stream and self.options.expect and connection.chunks != self.options.expect:
            return self.failed(f"{connection.chunks} chunks, not {self.options.expect}")
        return took, connection.first - began, connection.chunks

    def failed(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    async def closed_loop(self, workers: int, seconds: float, *, stream: bool) -> list[tuple[float, float, int]]:
        request, until = self.request(stream=stream), time.perf_counter() + seconds
        results = []

        async def worker() -> None:
            while time.perf_counter() < until and sum(self.errors.values()) < 100:
                if (result := await self.once(request, stream=stream)) is not None:
                    results.append(result)

        await asyncio.gather(*(worker() for _ in range(workers)))
        return results

    async def open_loop(self, rate: float, seconds: float, *, stream: bool) -> list[tuple[float, float, int]]:
        request, began = self.request(stream=stream), time.perf_counter()
        tasks = []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(self.once(request, stream=stream)))
        return [result for result in await asyncio.gather(*tasks) if result is not None]

    async def run(self) -> dict[str, Any]:
        options = self.options
        stream = options.mode in {"stream", "ttfc", "paced", "hold"}
        for _ in range(options.warm):
            await self.once(self.request(stream=stream), stream=stream)
        self.errors.clear()
        self.stamps.clear()
        cpu, began = cpu_seconds(options.pid), time.perf_counter()
        match options.mode:
            case "sat" | "stream":
                results = await self.closed_loop(options.c, options.d, stream=stream)
            case "rate" | "ttfc":
                results = await self.open_loop(options.rate, options.d, stream=stream)
            case "paced" | "hold":
                request = self.request(stream=True)
                opened = [asyncio.create_task(self.once(request, stream=True)) for _ in range(options.c)]
                if options.mode == "hold":
                    await asyncio.sleep(options.d)
                    held = memory_mb(options.pid)
                    for task in opened:
                        task.cancel()
                    return {"mode": "hold", "c": options.c, "rss_mb": held, "errors": self.errors}
                results = [result for result in await asyncio.gather(*opened) if result is not None]
        wall, used = time.perf_counter() - began, cpu_seconds(options.pid) - cpu
        units = sum(result[2] for result in results) if stream and options.mode != "ttfc" else len(results)
        whole, first = sorted(result[0] * 1e3 for result in results), sorted(result[1] * 1e3 for result in results)
        return {
            "mode": options.mode,
            "label": options.label,
            "c": options.c,
            "done": len(results),
            "per_s": round(units / wall, 1),
            "cpu_us": round(used / units * 1e6, 2) if units else None,
            "p50_ms": percentile(first if options.mode == "ttfc" else whole, 50),
            "p99_ms": percentile(first if options.mode == "ttfc" else whole, 99),
            "delay_p50_ms": percentile(sorted(self.stamps), 50),
            "delay_p99_ms": percentile(sorted(self.stamps), 99),
            "rss_mb": memory_mb(options.pid),
            "wall_s": round(wall, 2),
            "errors": self.errors,
        }


def percentile(values: list[float], q: int) -> float | None:
    return round(values[min(len(values) - 1, len(values) * q // 100)], 3) if values else None


def cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def memory_mb(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["sat", "rate", "stream", "ttfc", "paced", "hold"])
    parser.add_argument("--url", required=True, help="base, with /v1")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="null")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--expect", type=int, default=0, help="content chunks that a stream must have")
    parser.add_argument("--pid", type=int, action="append", default=[], help="a process of the server; repeatable")
    parser.add_argument("--label", default="")
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("-c", type=int, default=16, help="requests in flight")
    parser.add_argument("-d", type=float, default=5.0, help="seconds")
    parser.add_argument("--rate", type=float, default=20.0, help="requests/s of an open loop")
    options = parser.parse_args()
    result = asyncio.run(Load(options).run())
    sys.stdout.write(json.dumps(result) + "\n")
    sys.exit(1 if result["errors"] else 0)


if __name__ == "__main__":
    main()
