"""From the first moment of `evenflow up` to its last: who is ready when, and what is left when it ends, in any way."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import pytest_asyncio

from shared.settings import WorkerSettings
from tests.e2e.clients import Call, Watcher, alive, chat, eventually, family, idle, released, watching, worker
from tests.e2e.stack import ROOT, Stack, running
from workers.compose import spec_for
from workers.core.lifecycle import Lifecycle
from workers.engines.null import NullEngine
from workers.node import EngineStalledError, Node

pytestmark = pytest.mark.timeout(180)

PACE = {"WORKERS__0__ENGINE": "null", "WORKERS__0__NULL_MODE": "pace", "WORKERS__0__NULL_RATE": "20"}


# ---------------------------------------------------------------- a worker of the test's own, on the stack's real NATS


class SlowToLoad(NullEngine):
    """Loads when it is told to, and says how far it is."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def load(self, spec, progress):
        progress(0.4, "reading the weights")
        await self.go_on.wait()
        return await super().load(spec, progress)


class Hanging(NullEngine):
    """Takes every request, lists its model, calls itself healthy, and never makes a token."""

    async def _run(self, request, ticket, desk):
        await asyncio.Event().wait()
        yield


@contextlib.asynccontextmanager
async def node(stack: Stack, engine: NullEngine, name: str, stall_s: float = 10.0):
    """A worker in this process; yields the task that runs it."""
    settings = WorkerSettings(name=name, engine="null", slots=2)
    bus = await stack.join("worker", name)
    made = Node(settings, spec_for(settings), engine, bus)
    made.life = Lifecycle(stall_s)
    task = asyncio.create_task(made.run())
    try:
        yield task
    finally:
        made.stopping.set()
        engine.go_on.set() if isinstance(engine, SlowToLoad) else None
        await asyncio.wait([task], timeout=60)
        await bus.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare(tmp_path_factory):
    """NATS and a gateway, without a worker: it never gets ready by itself."""
    stack = Stack(tmp_path_factory.mktemp("lifecycle-bare"), WORKERS="0")
    starting = asyncio.create_task(asyncio.to_thread(stack.start))
    async with watching(stack) as watch:
        await eventually(lambda: answers(watch, "/health", 200), "the gateway lives")
    yield stack
    stack.stop()
    with contextlib.suppress(AssertionError):  # it waits for ready, which is never for long here
        await starting


async def answers(watch: Watcher, path: str, status: int) -> bool:
    return await watch.status(path) == status


@pytest.mark.asyncio(loop_scope="module")
async def test_while_a_model_loads_the_gateway_is_alive_but_not_ready(bare):
    """A load takes minutes; a restart because of it would never end."""
    async with watching(bare) as watch:
        call = await Call.post(bare, chat("x", model="null"))
        assert await call.head() == 503, "nothing is known of any model yet: that is no reason to say 404"
        assert (await call.body())["error"]["code"] == "no_worker"
        assert int(call.headers["retry-after"]) >= 1

        engine = SlowToLoad()
        async with node(bare, engine, "w7"):

            async def loading() -> bool:
                workers = (await watch.http.get(f"{bare.url}/ready")).json()["workers"]
                return bool(workers) and workers[0]["progress"] > 0

            await eventually(loading, "the progress is seen", within_s=10)
            seen = await watch.http.get(f"{bare.url}/ready")
            assert seen.status_code == 503
            assert seen.json()["missing"] == ["worker"]
            assert seen.json()["workers"] == [
                {
                    "name": "w7",
                    "state": "loading",
                    "models": ["null@1"],
                    "reason": "reading the weights",
                    "progress": 0.4,
                }
            ]
            assert await watch.status("/health") == 200

            call = await Call.post(bare, chat("x", model="null"))
            body = await call.body()
            assert (call.status, body["error"]["type"], body["error"]["code"]) == (
                503, "service_unavailable", "no_worker",
            )  # fmt: skip
            assert call.headers["retry-after"].isdecimal()
            assert int(call.headers["retry-after"]) >= 1
            assert call.headers["x-should-retry"] == "true"
            unknown = await Call.post(bare, chat("x", model="no-such-model"))
            assert (await unknown.body())["error"]["code"] == "model_not_found"
            assert unknown.status == 404
            assert unknown.headers["x-should-retry"] == "false"

            engine.go_on.set()
            await watch.ready(within_s=10)
            answer = await (await Call.post(bare, chat("x", model="null", stream=False, max_tokens=3))).body()
            assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.asyncio(loop_scope="module")
async def test_an_engine_that_hangs_is_noticed_by_its_lack_of_progress(bare):
    """Announcements come, health is fine, only no token does. Its request fails, and the worker gives up."""
    async with watching(bare) as watch, node(bare, Hanging(), "w8", stall_s=1.0) as task:
        await watch.ready(within_s=10)
        assert not task.done(), "idle is not stalled"
        streamed = await Call.post(bare, chat("x", model="null"))
        whole = await Call.post(bare, chat("x", model="null", stream=False))
        began = time.monotonic()
        await streamed.finish()
        assert streamed.error is not None
        assert streamed.error["retryable"] is True
        assert (await whole.body())["error"]["code"] == "worker_failed"
        assert whole.status == 502
        print(
            f"\nengine hangs (allowed: 1 s without a step): its requests failed after {time.monotonic() - began:.2f} s"
        )
        with pytest.raises(BaseExceptionGroup) as gave_up:
            await asyncio.wait_for(task, 30)
        assert gave_up.group_contains(EngineStalledError)
        await watch.reach("nothing is held", released, within_s=5)
        await eventually(lambda: answers(watch, "/ready", 503), "not ready", within_s=5)


# ------------------------------------------------------------------------------------------------------------ the end


def port_is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def ports(stack: Stack) -> list[int]:
    return [stack.port, stack.admin_port, int((stack.directory / ".evenflow" / "nats" / "port").read_text())]


async def streams(stack: Stack, watch: Watcher) -> list[Call]:
    """Four streams in full flow."""
    calls = [await Call.post(stack, chat("x", model="null")) for _ in range(4)]
    await asyncio.gather(*(call.take(4) for call in calls))
    await watch.reach("four decode", lambda seen: worker(seen, "slots_decode") == 4)
    return calls


async def gone(stack: Stack, processes: list[int], within_s: float) -> float:
    """Seconds until no process and no port of the stack is left."""
    listening = ports(stack)

    async def nothing() -> bool:
        return not any(map(alive, processes)) and not any(map(port_is_open, listening))

    return await eventually(nothing, f"none of {processes} lives, none of {listening} is open", within_s)


@pytest.mark.parametrize(
    ("grace_s", "tokens"), [("30", "80"), ("1", "2000")], ids=["streams-end-within-the-grace", "streams-outlive-it"]
)
async def test_sigterm_under_four_streams(tmp_path, grace_s, tokens):
    """Nothing new is taken at once; what runs may end; what outlives the grace is told so. Exit 0, nothing left."""
    with running(tmp_path, **PACE, WORKERS__0__NULL_TOKENS=tokens, GATEWAY__SHUTDOWN_GRACE_S=grace_s) as stack:
        assert stack.process is not None
        processes = list(family(stack.process.pid))
        async with watching(stack) as watch:
            calls = await streams(stack, watch)
            stack.process.send_signal(signal.SIGTERM)
            told = time.monotonic()

            async def not_ready() -> bool:
                return await watch.status("/ready") != 200

            unready = await eventually(not_ready, "not ready any more", within_s=2)
            late = await Call.connect(stack)
            late.send(stack, chat("x", model="null"))
            assert await late.head() == 503
            assert (await late.body())["error"]["code"] == "draining"
            await asyncio.gather(*(call.finish() for call in calls))
            ended = time.monotonic() - told
            if grace_s == "30":
                assert [call.done for call in calls] == [True] * 4, [call.error for call in calls]
                assert {call.events for call in calls} == {82}
            else:
                errors = [call.error for call in calls if call.error]
                assert [(error["code"], error["retryable"]) for error in errors] == [("draining", True)] * 4
        assert await asyncio.to_thread(stack.process.wait, 30) == 0
        over = time.monotonic() - told
        await gone(stack, processes, within_s=1)
        print(
            f"\nSIGTERM, grace {grace_s} s: not ready after {unready * 1000:.0f} ms, streams over after {ended:.2f} s,"
            f" everything after {over:.2f} s"
        )


async def test_up_killed_leaves_no_orphans_and_starts_again_with_the_same_key(tmp_path):
    """SIGKILL: nobody can tidy up, so everybody must notice by themselves. One directory has one owner."""
    with running(tmp_path, GATEWAY__SHUTDOWN_GRACE_S="3") as stack:
        key = stack.key
        second = await asyncio.to_thread(second_up, stack)
        said = second.stdout.decode().splitlines()
        assert second.returncode == 2, said
        assert len(said) == 1, said
        assert "already" in said[0] or "running" in said[0], said
        async with watching(stack) as watch:
            assert await watch.status("/ready") == 200, "the second one disturbed the first"
            await watch.reach("idle", idle)
            idle_s = await gone(stack, kill(stack), within_s=10)

        await asyncio.to_thread(stack.start)
        async with watching(stack) as watch:
            assert stack.key == key
            answer = await (await Call.post(stack, chat("Hi.", stream=False, max_tokens=1), key=key)).body()
            assert answer["usage"]["completion_tokens"] == 1
            stream = await (await Call.post(stack, chat("Tell me a long story.", max_tokens=1500))).take(3)
            # The worker, draining, waits ten seconds for its bus to come back, then two for its last words.
            busy_s = await gone(stack, kill(stack), within_s=20)
            while await stream.next() is not None:
                pass
            assert not stream.done
        for log in (stack.directory / ".evenflow" / "log").glob("*.log"):
            assert "Traceback" not in log.read_text(errors="replace"), log
    print(f"\nkill -9 of evenflow up: nothing was left after {idle_s:.2f} s idle, {busy_s:.2f} s with a stream open")


def kill(stack: Stack) -> list[int]:
    """SIGKILL to `evenflow up` alone; returns it and all that it had started."""
    assert stack.process is not None
    processes = list(family(stack.process.pid))
    assert len(processes) >= 4, "up, NATS, a worker, a gateway"
    stack.process.kill()
    stack.process.wait(10)
    return processes


def second_up(stack: Stack) -> "subprocess.CompletedProcess[bytes]":
    """Another `evenflow up` in the same directory, on ports of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "up", "--no-answer", "--port", "0", "--admin-port", "0"],
        cwd=stack.directory,
        env={**environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
