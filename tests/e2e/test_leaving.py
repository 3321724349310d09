"""Clients that leave: whatever they held is free again, at once and for good."""

import asyncio
import os
import random
import signal
import statistics
import time

import pytest

from tests.e2e.clients import PROVE, Call, Watcher, chat, idle, released, second_tenant, watching, worker
from tests.e2e.stack import rss_mb, running

pytestmark = pytest.mark.timeout(900 if PROVE else 240)

CLIENTS = 200 if PROVE else 60
ROUNDS = 3
WORDS = ["river", "stone", "lamp", "garden", "winter", "clock", "bread", "violet", "engine", "harbour"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("leaving-llama"),
        LIMITS__TENANT_STREAMS="256",
        LIMITS__QUEUE_PER_TENANT="256",
        LIMITS__QUEUE_S="300",
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A worker whose first token takes twenty seconds."""
    with running(
        tmp_path_factory.mktemp("leaving-null"),
        WORKERS__0__ENGINE="null",
        WORKERS__0__NULL_MODE="pace",
        WORKERS__0__NULL_RATE="0.05",
        WORKERS__0__SLOTS="2",
    ) as stack:
        yield stack


def long_prompt(seed: int, words: int) -> str:
    """Nothing of it is in any cache, from the first word on."""
    chance = random.Random(seed)
    return " ".join(chance.choice(WORDS) for _ in range(words))


async def serves(stack) -> float:
    """One token, and how long that took in seconds."""
    began = time.monotonic()
    answer = await (await Call.post(stack, chat("Say yes.", stream=False, max_tokens=1))).body()
    assert answer["usage"]["completion_tokens"] == 1, answer
    return time.monotonic() - began


async def test_six_dropped_streams_do_not_hold_up_the_next_request(llama):
    """All slots are taken and two more wait when they leave: the newcomer must not wait for any of their tokens."""
    async with watching(llama) as watch:
        alone = await serves(llama)
        calls = [await Call.post(llama, chat("Tell me a very long story.", max_tokens=1500)) for _ in range(6)]
        await asyncio.gather(*(call.take(4) for call in calls[:4]))
        whole = 1500 / 3 * (time.monotonic() - min(call.first_at for call in calls[:4]))
        for call in calls:
            call.drop()
        took = await serves(llama)
        print(f"\none token: {alone:.3f} s alone, {took:.3f} s after six dropped streams that had {whole:.0f} s to go")
        assert took < whole / 4, "it waited for what nobody reads"
        await watch.reach("idle", idle)
        assert await watch.status("/health") == 200
        assert await watch.status("/ready") == 200


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_a_stream_aborted_while_another_prefills_leaves_the_worker_alive(llama, reset):
    """Long prefill A, start and abort B, then C; again and again."""
    async with watching(llama) as watch:
        for turn in range(10 if PROVE else 3):
            a = await Call.post(llama, chat(long_prompt(1000 + 10 * turn + reset, 250), max_tokens=2))
            await a.head()
            b = await Call.post(llama, chat("Count to a thousand.", max_tokens=500))
            await b.head()
            b.drop(reset=reset)
            c = await Call.post(llama, chat("Say yes.", max_tokens=1))
            await asyncio.gather(a.finish(), c.finish())
            assert a.done, f"the long prefill failed: {a.error}"
            assert c.done, f"the newcomer failed: {c.error}"
        await watch.reach("idle", idle)


async def test_the_worker_hears_of_a_leaving_before_the_first_token(patient):
    """Its engine would say nothing for twenty seconds; the slot must be free long before."""
    async with watching(patient) as watch:
        await watch.reach("idle at first", idle)
        call = await Call.post(patient, chat("x", model="null"))
        assert await call.head() == 200
        await watch.reach("in its slot", lambda seen: worker(seen, "slots_free") == 1)
        call.drop()
        free_s = await watch.reach("free again", idle, within_s=5)
        print(f"\nleft before the first token: slot free after {free_s * 1000:.0f} ms")
        whole = await Call.post(patient, chat("x", model="null", stream=False))
        await watch.reach("in its slot", lambda seen: worker(seen, "slots_free") == 1)
        whole.drop()
        await watch.reach("free again, not streamed", idle, within_s=5)


async def test_who_leaves_while_queued_never_reaches_a_worker(patient):
    async with watching(patient) as watch:
        await watch.reach("idle at first", idle)
        holders = [await Call.post(patient, chat("x", model="null")) for _ in range(2)]
        assert [await call.head() for call in holders] == [200, 200]
        opened = (await watch.metrics())["evenflow_protocol_opened_total"]
        waiting = [await Call.post(patient, chat("x", model="null", stream=stream)) for stream in (True, False, True)]
        await watch.reach("three in the line", lambda seen: seen["evenflow_queue_length"] == 3)
        for call in waiting:
            call.drop()
        left_s = await watch.reach("nobody in the line", lambda seen: not seen["evenflow_queue_length"], within_s=5)
        seen = await watch.metrics()
        print(f"\nleft while queued: out of the line after {left_s * 1000:.0f} ms")
        assert seen["evenflow_streams_held"] == 2
        for call in holders:
            call.drop()
        await watch.reach("idle", idle, within_s=5)
        assert (await watch.metrics())["evenflow_protocol_opened_total"] == opened


async def test_no_stream_of_a_tenant_leaks_by_cancels_or_a_killed_worker(patient):
    """A tenant that may hold two: cancel both, kill the worker under two more; then two new ones are let in."""
    async with watching(patient) as watch:
        key = await second_tenant(patient, watch, "pair", max_streams=2)
        first = await pair(patient, key)
        surplus = await Call.post(patient, chat("x", model="null"), key=key)
        assert await surplus.head() == 429, "the bound does not hold"
        assert (await surplus.body())["error"]["code"] == "concurrency"
        for call in first:
            call.drop()
        await watch.reach("both cancelled", idle, within_s=5)

        second = await pair(patient, key)
        [pid] = patient.pids("workers.cli")
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        await asyncio.gather(*(call.finish() for call in second))
        for call in second:
            assert call.error is not None, "a stream whose worker was killed looked finished"
        await watch.reach("both given back", released, within_s=5 - (time.monotonic() - killed))
        back_s = time.monotonic() - killed
        until, third = killed + 30, []
        while len(third) < 2:  # a worker has to be there again, but nobody may say "too many" meanwhile
            call = await Call.post(patient, chat("x", model="null"), key=key)
            if await call.head() == 200:
                third.append(call)
                continue
            assert call.status in (502, 503), await call.body()
            assert time.monotonic() < until, await call.body()
        for call in third:
            call.drop()
        await watch.reach("idle", idle)
        print(f"\nworker killed under a tenant's two streams: both free again after {back_s:.2f} s")


async def pair(stack, key: str) -> list[Call]:
    """Two streams that a worker has accepted."""
    calls = [await Call.post(stack, chat("x", model="null"), key=key) for _ in range(2)]
    assert [await call.head() for call in calls] == [200, 200]
    return calls


async def leave(stack, seed: int) -> str:
    """One client that leaves at a moment of its own, or stays. Returns what it saw last."""
    chance = random.Random(seed)
    await asyncio.sleep(chance.uniform(0, 1.5))  # when it comes, not a wait for anything
    moment = chance.choice(["half", "soon", "later", "later", "head", "first", "some", "whole", "whole", "stays"])
    prompt = long_prompt(seed, 200) if chance.random() < 0.2 else f"Tell me a story about the number {seed}."
    body = chat(prompt, stream=moment != "whole", max_tokens=8 if moment == "stays" else 200)
    call = await Call.connect(stack)
    if moment == "half":
        call.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n{")
        call.drop(reset=chance.random() < 0.5)
        return moment
    call.send(stack, body)
    match moment:
        case "later" | "whole":
            await asyncio.sleep(chance.uniform(0.01, 4.0))
        case "head":
            await call.head()
        case "first":
            await call.next()
        case "some":
            for _ in range(chance.randint(2, 8)):
                await call.next()  # a short story may have ended by itself
        case "stays":
            await call.finish()
            assert call.done
            return moment
    assert call.error is None, call.error
    call.drop(reset=chance.random() < 0.5)
    return moment


@pytest.mark.timeout(1800 if PROVE else 200)
async def test_clients_that_leave_at_random_moments_leave_nothing_behind(llama):
    """Three rounds. Memory is compared between the last two: the first fills caches and pools."""
    [gateway], [engine] = llama.pids("gateway.cli gateway"), llama.pids("workers.cli")
    sizes: list[tuple[float, float]] = []
    async with watching(llama) as watch:
        for turn in range(ROUNDS):
            began = time.monotonic()
            moments = await asyncio.gather(*(leave(llama, 10_000 * turn + n) for n in range(CLIENTS)))
            settled_s = await watch.reach(f"idle after round {turn}", idle, within_s=30)
            sizes.append((rss_mb(gateway), rss_mb(engine)))
            took = await serves(llama)
            print(
                f"\nround {turn}: {CLIENTS} clients in {time.monotonic() - began:.1f} s, idle {settled_s * 1000:.0f} ms"
                f" after the last, one token {took:.2f} s, RSS gateway {sizes[-1][0]:.1f} worker {sizes[-1][1]:.1f} MB,"
                f" { ({moment: moments.count(moment) for moment in sorted(set(moments))}) }"
            )
            await watch.reach("idle once more", idle, within_s=5)
            assert (await watch.metrics())["evenflow_streams_buffered_bytes"] == 0
    assert llama.pids("gateway.cli gateway") == [gateway], "the gateway was restarted"
    assert llama.pids("workers.cli") == [engine], "the worker was restarted"
    for name, before, after in zip(("gateway", "worker"), sizes[-2], sizes[-1], strict=True):
        assert after < before * 1.05, f"the {name} grew from {before:.1f} to {after:.1f} MB in one round"


async def released_after(watch: Watcher, call: Call) -> tuple[float, float]:
    """Milliseconds from the client's leaving to the tenant's stream given back and to the engine's slot free."""
    call.drop()
    began = time.monotonic()
    await watch.reach("released", released, within_s=10)
    held = time.monotonic() - began
    await watch.reach("slot free", idle, within_s=10)
    return held * 1000, (time.monotonic() - began) * 1000


async def test_time_from_leaving_to_free(llama):
    """Measured from outside, scrape by scrape: upper bounds. Asserted is only what does not depend on the machine."""
    async with watching(llama) as watch:
        await watch.reach("idle at first", idle)
        decoding, prefilling, next_token = [], [], []
        for _ in range(8):
            call = await (await Call.post(llama, chat("Tell me a very long story.", max_tokens=1500))).take(4)
            decoding.append(await released_after(watch, call))
        began = time.monotonic()
        whole = await Call.post(llama, chat(long_prompt(1, 500), max_tokens=1))
        await whole.finish()
        prefill_s = whole.first_at - began
        for seed in range(2, 7):
            call = await Call.post(llama, chat(long_prompt(seed, 500), max_tokens=1))
            await watch.reach("prefilling", lambda seen: worker(seen, "slots_prefill") == 1)
            prefilling.append(await released_after(watch, call))
            next_token.append(await serves(llama))
        for name, rows in (("decoding", decoding), ("prefilling", prefilling)):
            held, slot = zip(*rows, strict=True)
            print(
                f"\nclient gone while {name}: released {statistics.median(held):.0f} (max {max(held):.0f}) ms,"
                f" slot free {statistics.median(slot):.0f} (max {max(slot):.0f}) ms"
            )
        print(
            f"\na prefill takes {prefill_s * 1000:.0f} ms; one token of another request after it was left takes"
            f" {statistics.median(next_token) * 1000:.0f} (max {max(next_token) * 1000:.0f}) ms"
        )
        assert statistics.median(next_token) < prefill_s / 2, "the engine went on with the prefill"
