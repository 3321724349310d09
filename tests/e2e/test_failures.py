"""Parts that die, freeze or crawl under open streams: every stream ends, says how, and the service comes back by itself."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import openai
import pytest

from tests.e2e.clients import Call, alive, chat, eventually, family, idle, released, watching, worker
from tests.e2e.stack import LLAMA, rss_mb, running

pytestmark = pytest.mark.timeout(180)

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    with running(tmp_path_factory.mktemp("failures-llama")) as stack:
        yield stack


@pytest.fixture(scope="module")
def null(tmp_path_factory):
    """Streams of twenty tokens a second that last until something happens to them."""
    with running(
        tmp_path_factory.mktemp("failures-null"),
        WORKERS__0__ENGINE="null",
        WORKERS__0__NULL_MODE="pace",
        WORKERS__0__NULL_RATE="20",
        WORKERS__0__NULL_TOKENS="1500",
        WORKERS__0__SLOTS="16",
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def flood(tmp_path_factory):
    """One answer is far larger than any socket buffer, and comes as fast as it can."""
    with running(
        tmp_path_factory.mktemp("failures-flood"),
        WORKERS__0__ENGINE="null",
        WORKERS__0__NULL_MODE="script",
        WORKERS__0__NULL_TOKENS="150000",
        WORKERS__0__CONTEXT="200000",
        LIMITS__STREAM_BUFFER_BYTES=str(256 * 1024),
        LIMITS__STALLED_S="2",
        GATEWAY__KEEPALIVE_S="300",
    ) as stack:
        yield stack


async def four(stack, tokens: int = 5) -> list[Call]:
    """Four streams in full flow."""
    calls = [await Call.post(stack, chat("x", model="null")) for _ in range(4)]
    await asyncio.gather(*(call.take(tokens) for call in calls))
    return calls


async def ends(calls: list[Call]) -> float:
    """Seconds until every stream has ended. One that hangs, or is cut off without a word, fails here."""
    began = time.monotonic()
    await asyncio.gather(*(call.finish() for call in calls))
    return time.monotonic() - began


async def served_again(stack, model: str) -> None:
    """Ask as a client with patience does: again for as long as the answer says that asking again helps."""
    until = time.monotonic() + 30
    while True:
        call = await Call.post(stack, chat("Say yes.", model=model, max_tokens=1, stream=False))
        body = await call.body()
        if call.status == 200:
            assert body["usage"]["completion_tokens"] == 1
            return
        assert call.headers["x-should-retry"] == "true", body
        assert time.monotonic() < until, body


def retryable_error(call: Call) -> bool:
    return call.error is not None and call.error["retryable"] is True and not call.done


async def test_worker_killed_after_five_tokens(llama):
    """Streamed: an error event and no `[DONE]`. Not streamed: a 502 that says that trying again helps."""
    [pid] = llama.pids("workers.cli")
    async with watching(llama) as watch:
        streamed = await Call.post(llama, chat("Tell me a very long story.", max_tokens=1500))
        whole = await Call.post(llama, chat("Tell me a very long story.", max_tokens=1500, stream=False))
        await streamed.take(6)  # a role and five tokens
        await watch.reach("both decode", lambda seen: worker(seen, "slots_decode") == 2)
        left = list(family(pid))
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        noticed = await ends([streamed])
        assert retryable_error(streamed), streamed.error
        assert streamed.error["type"] == "server_error"
        body = await whole.body()
        assert whole.status == 502, body
        assert whole.headers["x-should-retry"] == "true"
        assert body["error"]["code"] == "worker_failed"
        assert not [child for child in left if alive(child)], "something of the killed worker lives on"
        await watch.reach("nothing is held", released, within_s=5)
        await served_again(llama, LLAMA)
        back = time.monotonic() - killed
        assert llama.pids("workers.cli") != [pid]
        print(
            f"\nworker killed: the stream's error came after {noticed:.2f} s, the service was back after {back:.2f} s"
        )


async def test_openai_client_raises_when_the_worker_dies(null):
    """The official client must not take half an answer for a whole one."""
    [pid] = null.pids("workers.cli")
    five = threading.Event()

    def read() -> int:
        pieces = 0
        with openai.OpenAI(base_url=f"{null.url}/v1", api_key=null.key, max_retries=0, timeout=60) as client:
            for chunk in client.chat.completions.create(
                model="null", messages=[{"role": "user", "content": "x"}], stream=True
            ):
                pieces += bool(chunk.choices and chunk.choices[0].delta.content)
                if pieces == 5:
                    five.set()
        return pieces

    async with watching(null) as watch:
        reading = asyncio.create_task(asyncio.to_thread(read))
        assert await asyncio.to_thread(five.wait, 30)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            await reading
        assert "worker" in str(caught.value)
        await watch.ready()
        await watch.reach("idle", idle)


async def test_nats_killed_under_open_streams(null):
    """The bus is gone for a moment: streams may survive it or end with an error, but none may hang or look finished."""
    [pid] = null.pids("nats-server")
    async with watching(null) as watch:
        calls = [await Call.post(null, chat("x", model="null", max_tokens=120)) for _ in range(4)]
        await asyncio.gather(*(call.take(5) for call in calls))
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        await watch.reach("another NATS", lambda _seen: null.pids("nats-server") not in ([], [pid]), within_s=5)
        await served_again(null, "null")
        back = time.monotonic() - killed
        await ends(calls)
        texts = [call.events for call in calls]
        for call in calls:
            assert call.done or retryable_error(call)
            if call.done:
                assert call.events == 122, "a stream that survived lost tokens or had some twice"
        await watch.reach("idle", idle)
        print(
            f"\nNATS killed: a new request was served after {back:.2f} s; {sum(call.done for call in calls)} of 4 streams"
            f" went on to their end, {texts} events"
        )
        assert back < 5


async def not_ready(watch) -> bool:
    return await watch.status("/ready") == 503


async def test_a_frozen_worker_is_noticed_and_welcome_again(null):
    """SIGSTOP for four seconds and more: sockets stay open and nobody says a word."""
    [pid] = null.pids("workers.cli")
    async with watching(null) as watch:
        calls = await four(null)
        os.kill(pid, signal.SIGSTOP)
        try:
            stopped = time.monotonic()
            noticed = await ends(calls)
            assert all(retryable_error(call) for call in calls), [call.error for call in calls]
            await eventually(lambda: not_ready(watch), "not ready", within_s=3)
            await watch.reach("nothing is held", released, within_s=5)
            refused = await Call.post(null, chat("x", model="null"))
            assert await refused.head() == 503
            assert (await refused.body())["error"]["code"] == "no_worker"
            assert int(refused.headers["retry-after"]) >= 1
            await asyncio.sleep(max(0.0, 4.0 - (time.monotonic() - stopped)))  # the freeze itself
        finally:
            os.kill(pid, signal.SIGCONT)
        woken = time.monotonic()
        await watch.ready()
        for call in await four(null):
            call.drop()
        again = time.monotonic() - woken
        await watch.reach("idle: the worker aborted what nobody wants any more", idle, within_s=10)
        assert null.pids("workers.cli") == [pid], "it was restarted, though it only slept"
        print(f"\nworker frozen: streams ended after {noticed:.2f} s; {again:.2f} s after SIGCONT four streams flowed")
        assert noticed < 10


async def test_gateway_killed_its_streams_end_at_the_worker(null):
    """A new gateway epoch: the worker gives up what the old one had asked for, and the slots are free."""
    [pid] = null.pids("gateway.cli gateway")
    async with watching(null) as watch:
        calls = await four(null)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        for call in calls:
            while await call.next() is not None:
                pass
            assert not call.done, "a cut-off stream looked finished"
        await watch.ready()
        back = time.monotonic() - killed
        free = await watch.reach("idle", idle, within_s=15) + back
        assert null.pids("gateway.cli gateway") not in ([], [pid])
        for call in await four(null):
            call.drop()
        await watch.reach("idle", idle)
        print(f"\ngateway killed: ready again after {back:.2f} s, all slots free after {free:.2f} s")


async def test_a_client_that_stops_reading_costs_bounded_memory_and_hurts_nobody(flood):
    """40 MB of events for somebody who reads none of them: kept is what `limits.stream_buffer_bytes` allows."""
    [gateway] = flood.pids("gateway.cli gateway")

    def connected() -> int:
        """Established connections at the tenants' door, by its end of them."""
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        return sum(row[1].endswith(f":{flood.port:04X}") and row[3] == "01" for row in rows)

    async with watching(flood) as watch:
        ok = await (await Call.post(flood, chat("x", model="null", max_tokens=2000))).finish()
        assert ok.done
        before = rss_mb(gateway)
        slow = [await Call.post(flood, chat("x", model="null"), receive_buffer=8192) for _ in range(3)]
        assert [await call.head() for call in slow] == [200] * 3
        assert connected() >= 3
        most = [0.0]

        def cancelled(seen) -> bool:
            most[0] = max(most[0], rss_mb(gateway) - before)
            return seen["evenflow_streams_open"] == 0 and worker(seen, "slots_free") == 4

        stopped = await watch.reach("the worker was told to stop", cancelled, within_s=30)
        kept = (await watch.metrics())["evenflow_streams_buffered_bytes"]
        other = await (await Call.post(flood, chat("x", model="null", max_tokens=2000))).finish()
        assert other.done, "somebody else's stream suffered"
        assert other.events == 2002
        reader, *silent = slow
        await reader.finish()
        assert reader.error is not None, "half an answer looked whole"
        assert reader.error["code"] == "client_too_slow", reader.error
        assert reader.events < 150_000
        await watch.reach("those who never read were let go", idle, within_s=20)
        print(
            f"\nthree clients that do not read: stopped after {stopped:.2f} s, {kept / 1024:.0f} KiB kept in their"
            f" inboxes, gateway RSS + {most[0]:.1f} MB; the one that read on got {reader.events} of 150002 events"
        )
        assert kept < 3 * 1.5 * MIB
        assert most[0] < 40

        async def closed() -> bool:
            return connected() == 0

        await eventually(closed, "the connections of those who never read are closed, though they keep theirs open", 20)
        assert len(silent) == 2


def test_the_model_is_the_embedded_one(llama):
    assert LLAMA in (llama.directory / "up.out").read_text()
