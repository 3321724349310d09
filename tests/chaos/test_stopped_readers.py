"""Clients that open long streams and stop reading: bounded memory, their slots back, and nobody else is slower for it.

What bounds a stopped reader, whichever comes first: `limits.stream_buffer_bytes` of events that wait for it (full at
once under a flood), `limits.stalled_s` without progress of a full socket, and twice that after its own kernel takes no
more, when ours gives the connection up. So N of them hold N slots for at most two `stalled_s`, and one tenant's never
more than its bound on streams.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.chaos.crowd import Plan, crowd
from tests.e2e.clients import PATIENCE_S, PROVE, Call, Metrics, Watcher, chat, eventually, watching, worker
from tests.e2e.stack import Stack, rss_mb, running

pytestmark = pytest.mark.timeout(600 if PROVE else 120)

COUNT = 500 if PROVE else 40
STALLED_S = 10.0 if PROVE else 2.0
FLOOD_STALLED_S = 15.0 if PROVE else 5.0
BEFORE_S = 30.0 if PROVE else 1.0
RATIO = 1.3
KIB = 1024
BUFFER_BYTES = 128 * KIB
HEAVY_TOKENS = 600
"""More than a socket takes at once, and less than one reader's own bound."""
NAME = "steady-" + "y" * 249
"""As long as a model's name may be: it is in every chunk, and so fewer chunks fill a socket."""
SOCKET_KIB = 128
"""What a stopped reader may cost beside its inbox: the server's write buffer, 64 KiB and what was sent at once on top."""
FLOOD_KIB = 3 * BUFFER_BYTES // KIB + SOCKET_KIB + 128
"""What one may cost in all under a flood: its events as objects, its socket, and an open stream as such."""
SLACK_MB = 16.0
"""Arenas and pools that the allocator keeps, whatever the count."""


def settings(**more: str) -> dict[str, str]:
    """`w1` is for those who stop; exactly one slot for each. `w2` is for everybody else."""
    return {
        "WORKERS__0__ENGINE": "null",
        "WORKERS__0__CONTEXT": "200000",
        "WORKERS__0__NULL_TOKENS": "100000",
        "WORKERS__0__SLOTS": str(COUNT),
        "WORKERS__1__ENGINE": "null",
        "WORKERS__1__MODEL": "quick",
        "WORKERS__1__SLOTS": "16",
        "WORKERS__1__NULL_TOKENS": "1000",
        "LIMITS__TENANT_STREAMS": str(COUNT + 64),
        "LIMITS__STALLED_S": str(STALLED_S),
        "LIMITS__QUEUE_S": "120",
        **more,
    }


@dataclass
class Others:
    """Somebody else, every tenth of a second: seconds to the first token of each, and whether all came whole."""

    first_s: list[float] = field(default_factory=list)
    faults: list[object] = field(default_factory=list)

    @property
    def p95_ms(self) -> float:
        return statistics.quantiles(self.first_s, n=20)[-1] * 1000

    async def ask(self, stack: Stack) -> None:
        began = time.monotonic()
        call = await (await Call.post(stack, chat("x", model="quick", max_tokens=20))).finish()
        self.first_s.append(call.first_at - began)
        if not call.done or call.events != 22:
            self.faults.append((call.events, call.error))


@asynccontextmanager
async def asking(stack: Stack, seen: Others) -> AsyncIterator[None]:
    """They ask for as long as the block lasts; every request is waited for."""
    over = asyncio.Event()

    async def keep_asking() -> None:
        async with asyncio.TaskGroup() as group:
            while not over.is_set():
                group.create_task(seen.ask(stack))
                await asyncio.sleep(0.1)

    task = asyncio.create_task(keep_asking())
    try:
        yield
    finally:
        over.set()
        await task


class Look:
    """Metrics and memory of the gateway, twice a second: scrapes cost it time, too."""

    def __init__(self, stack: Stack, watch: Watcher) -> None:
        self._watch = watch
        [self._gateway] = stack.pids("gateway.cli gateway")
        self.rss_mb = self.most_mb = rss_mb(self._gateway)
        self.most_buffered = 0.0

    async def until(self, holds: Callable[[Metrics], bool], what: str, within_s: float = PATIENCE_S) -> float:
        """Wait until the metrics pass; returns the seconds that took."""
        began = time.monotonic()
        while True:
            seen = await self.now()
            if holds(seen):
                return time.monotonic() - began
            assert time.monotonic() - began < within_s, f"not within {within_s:g} s: {what}"
            await asyncio.sleep(0.5)

    async def now(self) -> Metrics:
        seen = await self._watch.metrics()
        self.rss_mb = rss_mb(self._gateway)
        self.most_mb = max(self.most_mb, self.rss_mb)
        self.most_buffered = max(self.most_buffered, seen["evenflow_streams_buffered_bytes"])
        return seen


async def both_ready(stack: Stack, watch: Watcher) -> None:
    """The stack is ready when one worker is; the other one's model is not known before it has announced it."""

    async def ready() -> bool:
        workers = (await watch.http.get(f"{stack.admin}/ready")).json()["workers"]
        return [one["state"] for one in workers] == ["ready", "ready"]

    await eventually(ready, "both workers are ready")


def slots_back(seen: Metrics) -> bool:
    return worker(seen, "slots_free") == COUNT and worker(seen, "in_flight") == 0


def nothing_held(seen: Metrics) -> bool:
    return slots_back(seen) and seen["evenflow_requests_in_flight"] == seen["evenflow_streams_buffered_bytes"] == 0


def plan(stack: Stack, model: str, *, reading: bool) -> Plan:
    return Plan(stack.port, stack.key, COUNT, chat("x", model=model), reading)


async def test_at_a_models_pace_they_are_let_go_in_time_and_slow_nobody_down(tmp_path: Path) -> None:
    """Too slow to fill anything: it is the kernel's clock that ends them. Before: the same streams, while they read."""
    pace = {"WORKERS__0__MODEL": "steady", "WORKERS__0__NULL_MODE": "pace", "WORKERS__0__NULL_RATE": "5"}
    named = {"MODELS__0__NAME": NAME, "MODELS__0__MODEL": "steady"}
    with running(tmp_path, **settings(**pace, **named)) as stack:
        async with watching(stack) as watch:
            await both_ready(stack, watch)
            with crowd(plan(stack, NAME, reading=True)) as clients:
                assert await asyncio.to_thread(clients.wait) == COUNT
                look = Look(stack, watch)
                before, during = Others(), Others()
                async with asking(stack, before):
                    await asyncio.sleep(BEFORE_S)
                await look.now()
                reading_mb = look.rss_mb
                assert clients.stop() == COUNT, "a stream of somebody who reads was cut"
                began = time.monotonic()
                late = asyncio.create_task(late_comer(stack))
                async with asking(stack, during):
                    held = await look.until(slots_back, "all slots are free again", within_s=2 * STALLED_S + 30)
                waited = await late - began
                await look.until(nothing_held, "the gateway holds nothing for them")
                ends = await asyncio.to_thread(clients.finish, COUNT)
    grown_kib = (look.most_mb - reading_mb) * KIB / COUNT
    print(
        f"\n{COUNT} stopped at 5 tokens/s: slots back after {held:.1f} s (stalled_s {STALLED_S:g}), gateway RSS"
        f" {reading_mb:.0f} MB, at most {look.most_mb:.0f} MB: {grown_kib:.0f} KiB each; who waited for a slot had it"
        f" after {waited:.1f} s; ends: {ends}; first token of others p50/p95:"
        f" {statistics.median(before.first_s) * 1000:.1f}/{before.p95_ms:.1f} ms before ({len(before.first_s)}),"
        f" {statistics.median(during.first_s) * 1000:.1f}/{during.p95_ms:.1f} ms during ({len(during.first_s)})"
    )
    assert held > STALLED_S, "who pauses for a moment is not to be cut off"
    assert set(ends) <= {"cut", "client_too_slow"}, "half an answer looked whole"
    assert look.most_mb - reading_mb < COUNT * SOCKET_KIB / KIB + SLACK_MB
    assert not before.faults
    assert not during.faults, "somebody else's stream suffered"
    if PROVE:
        assert during.p95_ms < RATIO * before.p95_ms


async def late_comer(stack: Stack) -> float:
    """Asks for the model whose slots they all hold; returns when the first token came."""
    call = await (await Call.post(stack, chat("x", model=NAME, max_tokens=1))).finish()
    assert call.done, call.error
    return call.first_at


@pytest.mark.parametrize("bound", ["each", "all"] if PROVE else ["all"])
async def test_a_flood_for_them_costs_what_the_bounds_say(tmp_path: Path, bound: str) -> None:
    """Each would be sent 20 MB at once. `each`: its own bound ends it; `all`: half of that in all, longest-stalled first."""
    total = COUNT * BUFFER_BYTES // (2 if bound == "all" else 1)
    flood = {
        "WORKERS__0__MODEL": "flood",
        "LIMITS__STALLED_S": str(FLOOD_STALLED_S),
        "LIMITS__STREAM_BUFFER_BYTES": str(BUFFER_BYTES),
    }
    if bound == "all":
        flood["LIMITS__ALL_BUFFERS_BYTES"] = str(total)
    with running(tmp_path, **settings(**flood)) as stack:
        async with watching(stack) as watch:
            await both_ready(stack, watch)
            look = Look(stack, watch)
            empty_mb = look.rss_mb
            during = Others()
            async with asking(stack, during):
                began = time.monotonic()
                with crowd(plan(stack, "flood", reading=False)) as clients:
                    assert await asyncio.to_thread(clients.wait) == COUNT
                    held = await look.until(slots_back, "the worker was told to stop")
                    heavy = [
                        await Call.post(stack, chat("x", model="quick", max_tokens=HEAVY_TOKENS)) for _ in range(8)
                    ]
                    await asyncio.gather(*(call.finish() for call in heavy))
                    ends = await asyncio.to_thread(clients.finish, COUNT // 2)
                    in_time = time.monotonic() - began < 2 * FLOOD_STALLED_S
                    closed = await look.until(nothing_held, "those who never read are let go")
                    silent = await asyncio.to_thread(clients.finish, COUNT)
    each_kib = (look.most_mb - empty_mb) * KIB / COUNT
    print(
        f"\n{COUNT} stopped under a flood, bound by {bound}: slots back after {held:.1f} s, all let go after {closed:.1f} s;"
        f" at most {look.most_buffered / KIB:.0f} KiB of {total / KIB:.0f} kept; gateway RSS {empty_mb:.0f} MB, at most"
        f" {look.most_mb:.0f} MB: {each_kib:.0f} KiB each, its connection included; ends: {ends}, then {silent};"
        f" others: {len(during.first_s)}, p95 {during.p95_ms:.1f} ms"
    )
    assert not during.faults, "somebody else's stream suffered"
    assert all(call.done for call in heavy), [call.error for call in heavy if not call.done]
    assert set(silent) <= {"client_too_slow", "cut"}, "half an answer looked whole"
    if in_time:
        assert ends == {"client_too_slow": COUNT // 2}, "who reads on before it is let go is told"
    assert look.most_buffered < 1.5 * total
    assert look.most_mb - empty_mb < COUNT * FLOOD_KIB / KIB + SLACK_MB
