"""A load client for any OpenAI-compatible endpoint: raw asyncio, keep-alive, standard library (and uvloop if there).

    EVENFLOW_BENCH_KEY=ef-... python -m infra.bench.load MODE --url http://127.0.0.1:8080/v1 [...]

Every run prints one JSON line. CPU seconds and memory of the server's processes are read around the run: the figures
that a busy machine disturbs least. Loads are bounded in count and time and go where `--url` says.

    sat     closed loop of whole answers: requests/s at saturation
    rate    open loop of whole answers: latency at a low rate
    stream  closed loop of streams that come as fast as they can: chunks/s
    ttfc    open loop of streams: time to the first content chunk
    paced   open streams whose chunks carry `@<CLOCK_MONOTONIC ns>@`: delay of each chunk, CPU per chunk
    hold    opens streams until each has its first chunk, then leaves: memory with so many open
"""

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from infra.bench.connection import Connection
from infra.bench.processes import cpu_seconds, family, memory_mb

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

STREAMED = {"stream", "ttfc", "paced", "hold"}
ERRORS_AT_MOST = 50
ANSWER_S = 60.0
Result = tuple[float, float, int]


class Load:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stream = options.mode in STREAMED
        address = urlsplit(options.url)
        self.host, self.port = address.hostname or "127.0.0.1", address.port or 80
        self.path = address.path.rstrip("/") + "/chat/completions"
        self.pids = family(options.pid) if options.pid else []
        self.idle: list[Connection] = []
        self.begun = 0
        self.errors: dict[str, int] = {}
        self.stamps: list[float] = []
        self.request = self._request()

    def _request(self) -> bytes:
        body = {
            "model": self.options.model,
            "messages": [{"role": "user", "content": "Say hello to the benchmark, please."}],
            "max_tokens": self.options.max_tokens,
            **({"stream": True} if self.stream else {}),
        }
        text = json.dumps(body).encode()
        key = os.environ.get("EVENFLOW_BENCH_KEY", "none")
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        return head.encode() + text

    async def once(self) -> Result | None:
        """Seconds in all, seconds to the first content, content chunks; None and an entry in `errors` if it failed."""
        began = time.perf_counter()
        connection = None
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._connection()
                began = time.perf_counter()
                status, body = await connection.ask(self.request, self.stamps if self.options.mode == "paced" else None)
        except (OSError, TimeoutError, ValueError) as error:
            if connection is not None:
                connection.transport.abort()
            return self.failed(type(error).__name__)
        except asyncio.CancelledError:
            if connection is not None:
                connection.transport.abort()
            raise
        took = time.perf_counter() - began
        self.idle.append(connection)
        if status != 200:
            return self.failed(f"HTTP {status}")
        if self.stream and not body.rstrip().endswith(b"[DONE]"):
            return self.failed("no [DONE]")
        if not self.stream and b'"choices"' not in body:
            return self.failed("no choices")
        if self.stream and self.options.expect and connection.chunks != self.options.expect:
            return self.failed(f"{connection.chunks} chunks, not {self.options.expect}")
        return took, connection.first - began, connection.chunks

    async def _connection(self) -> Connection:
        while self.idle and self.idle[-1].closed:
            self.idle.pop()
        if self.idle:
            return self.idle.pop()
        return (await asyncio.get_running_loop().create_connection(Connection, self.host, self.port))[1]

    def failed(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    async def closed_loop(self, workers: int, seconds: float) -> list[Result]:
        until = time.perf_counter() + seconds
        results = []

        async def worker() -> None:
            while True:  # once at least, however late it is
                if (result := await self.once()) is not None:
                    results.append(result)
                if time.perf_counter() >= until or sum(self.errors.values()) >= ERRORS_AT_MOST:
                    return

        await asyncio.gather(*(worker() for _ in range(workers)))
        return results

    async def open_loop(self, rate: float, seconds: float) -> list[Result]:
        began = time.perf_counter()
        tasks = []
        for number in range(max(1, int(rate * seconds))):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(self.once()))
        return [result for result in await asyncio.gather(*tasks) if result is not None]

    async def hold(self, count: int, seconds: float) -> dict[str, Any]:
        """Memory once every stream has begun, or the most that was seen until then. Raises OSError."""
        connections = []
        until = time.perf_counter() + seconds
        peak = 0.0
        for _ in range(count):
            connections.append(await self._connection())
            connections[-1].ask(self.request).add_done_callback(lambda future: future.exception())
        while True:
            peak = max(peak, memory_mb(self.pids))
            begun = sum(1 for connection in connections if connection.chunks and not connection.closed)
            if begun == count or time.perf_counter() > until:
                break
            await asyncio.sleep(0.1)
        for connection in connections:
            connection.transport.abort()
        if begun < count:
            self.failed(f"{begun} of {count} streams open after {seconds:.0f} s")
        return {"c": count, "rss_mb": peak}

    async def run(self) -> dict[str, Any]:
        options = self.options
        for _ in range(options.warm):
            await self.once()
        self.errors.clear()
        self.stamps.clear()
        if options.mode == "hold":
            return {"mode": "hold", **await self.hold(options.c, options.d), "errors": self.errors}
        cpu, began = cpu_seconds(self.pids), time.perf_counter()
        match options.mode:
            case "sat" | "stream":
                results = await self.closed_loop(options.c, options.d)
            case "rate" | "ttfc":
                results = await self.open_loop(options.rate, options.d)
            case _:
                opened = await asyncio.gather(*(self.once() for _ in range(options.c)))
                results = [result for result in opened if result is not None]
        wall, used = time.perf_counter() - began, cpu_seconds(self.pids) - cpu
        units = sum(result[2] for result in results) if options.mode in {"stream", "paced"} else len(results)
        times = sorted(result[1 if options.mode == "ttfc" else 0] * 1e3 for result in results)
        return {
            "mode": options.mode,
            "c": options.c if options.mode in {"sat", "stream", "paced"} else 0,
            "done": len(results),
            "per_s": round(units / wall, 1),
            "cpu_us": round(used / units * 1e6, 2) if units else None,
            "p50_ms": percentile(times, 50),
            "p99_ms": percentile(times, 99),
            "delay_p50_ms": percentile(sorted(self.stamps), 50),
            "delay_p99_ms": percentile(sorted(self.stamps), 99),
            "rss_mb": memory_mb(self.pids),
            "wall_s": round(wall, 2),
            "errors": self.errors,
        }


def percentile(values: list[float], share: int) -> float | None:
    """The value below which `share` % of the sorted `values` lie (nearest rank); None if there are none."""
    return round(values[min(len(values) - 1, len(values) * share // 100)], 3) if values else None


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("mode", choices=["sat", "rate", "stream", "ttfc", "paced", "hold"])
    made.add_argument("--url", required=True, help="base, with /v1")
    made.add_argument("--model", default="null")
    made.add_argument("--max-tokens", type=int, default=100)
    made.add_argument("--expect", type=int, default=0, help="content chunks that a stream must have")
    made.add_argument("--pid", type=int, default=0, help="the server; its descendants count, too")
    made.add_argument("--warm", type=int, default=20)
    made.add_argument("-c", type=int, default=16, help="requests in flight")
    made.add_argument("-d", type=float, default=5.0, help="seconds")
    made.add_argument("--rate", type=float, default=20.0, help="requests/s of an open loop")
    return made


def main() -> None:
    options = parser().parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        result = runner.run(Load(options).run())
    sys.stdout.write(json.dumps(result) + "\n")
    sys.exit(1 if result["errors"] else 0)


if __name__ == "__main__":
    main()
