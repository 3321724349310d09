"""What traces cost: CPU per token of gateway and worker with every request traced, against none, in one run.

    .venv/bin/python -m tests.bench.telemetry_cost [ROUNDS [paced|flood]]

Two stacks stand side by side, one of them sending its traces to a receiver in a process of its own; rounds of the same
load go to the one and the other in turn, so that both meet the same machine. The metrics of both are scraped meanwhile.
CPU is what the kernel counted for all threads, the exporter's included (`/proc/PID/task/*/schedstat`), from the first
round to the sending of the last span.
"""

import asyncio
import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.e2e.stack import Stack, running
from tests.traces.receiver import receiving

STREAMS = 16
LAST_S = 6  # spans leave every 5 s
TOKENS = 100
PROCESSES = {"gateway": "gateway.cli gateway", "worker": "workers.cli"}
LOADS = {"paced": "pace", "flood": "script"}


def receive(pipe) -> None:
    with receiving() as receiver:
        pipe.send(receiver.url)
        pipe.recv()
        pipe.send(len(receiver.spans()))


@contextlib.contextmanager
def receiver_process() -> Iterator[tuple[str, list[int]]]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs,))
    process.start()
    got: list[int] = []
    try:
        yield ours.recv(), got
    finally:
        ours.send("stop")
        got.append(ours.recv())
        process.join(20)


def cpu_s(pid: int) -> float:
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


async def one(client: httpx.AsyncClient, stack: Stack) -> None:
    body = {"model": "null", "messages": [{"role": "user", "content": "x"}], "max_tokens": TOKENS, "stream": True}
    async with client.stream("POST", f"{stack.url}/v1/chat/completions", json=body, headers=stack.headers) as answer:
        assert answer.status_code == 200
        text = b"".join([piece async for piece in answer.aiter_raw()])
    assert text.endswith(b"data: [DONE]\n\n")


async def load(stack: Stack, times: int) -> None:
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=STREAMS)) as client:

        async def lane() -> None:
            for _ in range(times):
                await one(client, stack)

        lanes = [asyncio.create_task(lane()) for _ in range(STREAMS)]
        await client.get(f"{stack.admin}/metrics")
        await asyncio.gather(*lanes)


def spent(stack: Stack) -> dict[str, float]:
    """CPU seconds of each process so far."""
    return {name: cpu_s(stack.pids(command)[0]) for name, command in PROCESSES.items()}


def compare(off: Stack, on: Stack, rounds: int, times: int) -> None:
    for stack in (off, on):
        asyncio.run(load(stack, times))  # warm
    time.sleep(LAST_S)
    before = spent(off), spent(on)
    for _ in range(rounds):
        for stack in (off, on):
            asyncio.run(load(stack, times))
    time.sleep(LAST_S)
    after = spent(off), spent(on)
    requests = STREAMS * times * rounds
    for process in PROCESSES:
        without, traced = (late[process] - early[process] for early, late in zip(before, after, strict=True))
        print(
            f"  {process:8} without {without / requests / TOKENS * 1e6:6.1f}   with {traced / requests / TOKENS * 1e6:6.1f}"
            f"   {(traced / without - 1) * 100:+5.1f} %   {(traced - without) / requests * 1e6:+5.0f} us a request"
        )
    seen = on.metrics()
    lost = sum(value for key, value in seen.items() if key.startswith("evenflow_telemetry_dropped"))
    print(f"  spans exported by the gateway {seen['evenflow_telemetry_exported_total']:.0f}, lost {lost:.0f}")


def main(rounds: int, loads: list[str]) -> None:
    with receiver_process() as (url, got), tempfile.TemporaryDirectory() as where:
        for name in loads:
            mode = LOADS[name]
            times = 2 if mode == "pace" else 20
            common = {
                "WORKERS__0__ENGINE": "null",
                "WORKERS__0__SLOTS": str(STREAMS),
                "WORKERS__0__NULL_MODE": mode,
                "WORKERS__0__NULL_TOKENS": str(TOKENS),
            }
            folders = [Path(where, f"{mode}-{kind}") for kind in ("off", "on")]
            for folder in folders:
                folder.mkdir()
            print(
                f"{name}: us of CPU per token, {STREAMS} streams, {rounds * times} answers of {TOKENS} tokens on each"
            )
            with (
                running(folders[0], **common) as off,
                running(folders[1], **common, TELEMETRY__OTLP_ENDPOINT=url) as on,
            ):
                compare(off, on, rounds, times)
    print(f"spans at the receiver: {got[0]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or list(LOADS))
