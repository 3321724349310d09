"""Load of every sort for a long time: memory stays level, and all that is held for requests is given back to the last.

EVENFLOW_TEST_SOAK_S sets for how many seconds.
"""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
from dataclasses import asdict

import pytest

from tests.chaos.accounts import faults, rows
from tests.chaos.load import Load, outcomes
from tests.chaos.vitals import Counts, Monitored, monitored, slope
from tests.e2e.clients import PROVE, Call, chat, eventually, idle, watching

SOAK_S = float(os.environ.get("EVENFLOW_TEST_SOAK_S", "1200" if PROVE else "8"))
WARM_S = SOAK_S / 10 if SOAK_S > 60 else 4.0
LONG = SOAK_S >= 120
"""Long enough that a slope says something."""
GROWTH = 0.03
ALLOWED_MB = {"gateway": 8.0, "w1": 4.0, "w2": 4.0, "nats": 16.0}
"""Beside 3 %: the gateway remembers the last 100,000 requests that were billed (some 200 bytes each), and Go's heap
breathes."""
COARSE_MB = 40.0

pytestmark = pytest.mark.timeout(SOAK_S * 2 + 300)

SETTINGS = {
    "WORKERS": "2",
    "WORKERS__0__ENGINE": "null",
    "WORKERS__0__NULL_MODE": "hash",
    "WORKERS__0__NULL_PACED": "true",
    "WORKERS__0__NULL_RATE": "100",
    "WORKERS__0__NULL_TOKENS": "1000",
    "WORKERS__0__SLOTS": "16",
    "WORKERS__1__ENGINE": "null",
    "WORKERS__1__MODEL": "flood",
    "WORKERS__1__NULL_TOKENS": "60000",
    "WORKERS__1__CONTEXT": "70000",
    "LIMITS__STREAM_BUFFER_BYTES": str(256 * 1024),
    "LIMITS__STALLED_S": "2",
}
BAD = [
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n{}}",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer nobody\r\n\r\n",
]


class Nuisance:
    """Clients as one has them: some leave, some talk nonsense, some do not read what they asked for."""

    def __init__(self, monitored: Monitored, seed: int) -> None:
        self._stack = monitored.stack
        self._chance = random.Random(seed)
        self.seen = {"left": 0, "bad": 0, "refused": 0, "slow": 0}

    async def leave(self) -> None:
        """Ask for much, take a little, go."""
        body = chat("x", model="null", max_tokens=500, stream=self._chance.random() < 0.8)
        async with self._call("left") as call:
            call.send(self._stack, body)
            if body["stream"]:
                await call.take(self._chance.randint(1, 30))
            else:
                await asyncio.sleep(self._chance.uniform(0, 0.5))

    async def babble(self) -> None:
        """Bytes that are no request."""
        async with self._call("bad") as call:
            call.write(self._chance.choice(BAD))
            await asyncio.sleep(self._chance.uniform(0, 0.2))

    async def err(self) -> None:
        """A request that is to be refused."""
        wrong = self._chance.choice([{"model": "none"}, {"max_tokens": -1}, {"max_tokens": 10**6}, {"n": 99}])
        async with self._call("refused") as call:
            call.send(self._stack, chat("x", **{"model": "null", **wrong}))
            assert 400 <= await call.head() < 500
            await call.body()

    async def dawdle(self) -> None:
        """Ask for megabytes and read none."""
        async with self._call("slow", receive_buffer=8192) as call:
            call.send(self._stack, chat("x", model="flood"))
            await call.head()
            await asyncio.sleep(4)  # this is its pace; twice what the gateway puts up with

    async def run(self) -> None:
        """One after the other, until cancelled; a dawdler now and then beside them."""
        async with asyncio.TaskGroup() as group:
            slow = time.monotonic()
            while True:
                await self._chance.choice([self.leave, self.babble, self.err])()
                if time.monotonic() >= slow:
                    slow = time.monotonic() + 10
                    group.create_task(self.dawdle())

    @contextlib.asynccontextmanager
    async def _call(self, what: str, **options: int) -> AsyncIterator[Call]:
        """A connection that ends when its client does, politely or not."""
        call = await Call.connect(self._stack, **options)
        try:
            yield call
        finally:
            self.seen[what] += 1
            call.drop(reset=self._chance.random() < 0.5)
            Call.all.remove(call)


async def loaded(one: Monitored, load: Load, nuisance: Nuisance, for_s: float) -> list[tuple[float, dict[str, float]]]:
    """Everything at once for so long; memory as sampled meanwhile."""
    samples, began = [], time.monotonic()
    async with load.running():
        nuisances = asyncio.create_task(nuisance.run())
        while (now := time.monotonic()) < began + for_s and not nuisances.done():
            samples.append((now - began, one.memory()))
            await asyncio.sleep(max(0.25, for_s / 400))
        nuisances.cancel()
        [ended] = await asyncio.gather(nuisances, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
    return samples


async def rest(one: Monitored) -> Counts:
    """Wait until nobody is served any more; what is held then, with no connection of ours open either."""
    began = time.monotonic()
    async with watching(one.stack) as watch:
        await watch.reach("idle", lambda seen: all(idle(seen, wid) for wid in ("w1", "w2")))
        await watch.reach("nothing is buffered", lambda seen: not seen["evenflow_streams_buffered_bytes"])
        await watch.reach("all is booked", lambda seen: not seen["evenflow_usage_open"] + seen["evenflow_ledger_open"])
    last = [one.counts()]

    async def still() -> bool:
        await asyncio.sleep(1)
        last.append(one.counts())
        return last[-1] == last[-2]

    await eventually(still, "counts that stand still")
    print(f"\n  at rest after {time.monotonic() - began:.1f} s")
    return last[-1]


async def test_a_long_load_of_every_sort_leaves_nothing_behind(tmp_path) -> None:
    with monitored(tmp_path, **SETTINGS) as one:
        pids, nuisance = one.pids(), Nuisance(one, seed=7)
        await loaded(one, Load(one.stack, "null", 1, clients=6, most_tokens=100), nuisance, WARM_S)
        base, before = await rest(one), one.memory()
        load = Load(one.stack, "null", 2, clients=6, most_tokens=100)
        samples = await loaded(one, load, nuisance, SOAK_S)
        counts, after = await rest(one), one.memory()
        print(f"\n{SOAK_S:.0f} s after {WARM_S:.0f} s of warming up; {nuisance.seen} and")
        print(outcomes(load.asked))
        print(f"  held at rest: {counts}")
        grown = {name: slope([(at, memory[name]) for at, memory in samples]) * SOAK_S for name in pids}
        for name in pids:
            print(
                f"  {name:<8} {before[name]:7.1f} -> {after[name]:7.1f} MB at rest, slope {grown[name]:+.2f} MB a run"
            )
        assert one.pids() == pids, "somebody was started again"
        assert asdict(counts) == asdict(base)
        found = {name: these for name, these in rows(one.stack).items() if name.startswith("chaos-2-")}
        assert not await faults(load.asked, found, [], exact=True)
        for name in pids:
            assert after[name] < before[name] * 1.2 + COARSE_MB
            if LONG:
                assert grown[name] < GROWTH * before[name] + ALLOWED_MB[name], name
