"""The bus with identities, as an operator runs it: one more worker under live streams, and a NATS server of one's own."""

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from gateway.up.files import free_port
from gateway.up.nats_server import find_binary
from tests.e2e.clients import chat
from tests.e2e.stack import ROOT, Stack, running

pytestmark = pytest.mark.timeout(120)

PACE = {
    "WORKERS__0__ENGINE": "null",
    "WORKERS__0__NULL_MODE": "pace",
    "WORKERS__0__NULL_RATE": "40",
    "WORKERS__0__NULL_TOKENS": "100",
}
STREAMS = 4


def evenflow(stack, *arguments):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    command = [sys.executable, "-m", "gateway.cli", *arguments]
    environ["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        command, cwd=stack.directory, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with running(tmp_path_factory.mktemp("identities"), **PACE) as stack:
        yield stack


def stamps(stack, begun):
    """Read one whole answer; returns its time stamps (one a token). `begun` is released at the tenth token."""
    found = []
    body = chat("x", model="null", stream=True, max_tokens=100)
    with httpx.stream(
        "POST", f"{stack.url}/v1/chat/completions", json=body, headers=stack.headers, timeout=60
    ) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            found += re.findall(r"@(\d+)@", line)
            if len(found) == 10:
                begun.release()
    return found


def test_a_worker_is_added_and_removed_under_live_streams_and_none_is_cut(stack):
    begun = threading.Semaphore(0)
    results = [[] for _ in range(STREAMS)]
    readers = [threading.Thread(target=lambda r=r: r.extend(stamps(stack, begun))) for r in results]
    for reader in readers:
        reader.start()
    for _ in readers:
        assert begun.acquire(timeout=30)
    said = evenflow(stack, "nats", "add-worker", "w9")
    assert "The running server has been told" in said
    asyncio.run(_announce_as(stack, "w9"))
    evenflow(stack, "nats", "remove", "w9")
    assert all(reader.is_alive() for reader in readers), "the streams ended before the change: nothing was shown"
    for reader in readers:
        reader.join(60)
    for result in results:
        assert len(result) == 100
        assert all(int(a) < int(b) for a, b in itertools.pairwise(result))
    for name in ("gateway", "worker-w1"):
        log = (stack.directory / ".evenflow" / "log" / f"{name}.log").read_text()
        assert "bus_disconnected" not in log
        assert "ermissions violation" not in log, "the table holds all that gateway and worker do"


async def _announce_as(stack, name):
    bus = await stack.join("worker", name)
    await bus.barrier()
    await bus.close()


def test_no_secret_is_in_a_command_line_an_environment_or_a_log(stack):
    secrets = [file.read_bytes().strip() for file in (stack.directory / ".evenflow" / "nats").rglob("nkey.seed")]
    secrets += [
        line
        for file in (stack.directory / ".evenflow" / "nats").rglob("key.pem")
        for line in file.read_bytes().splitlines()
        if len(line) > 40
    ]
    assert len(secrets) >= 3 + 4
    family = [pid for name in ("nats-server", "gateway.cli", "workers.cli") for pid in stack.pids(name)]
    assert len(family) == 3
    seen = stack.output().encode()
    for pid in (*family, stack.process.pid):
        for what in ("cmdline", "environ"):
            seen += Path(f"/proc/{pid}/{what}").read_bytes()
    for log in (stack.directory / ".evenflow" / "log").iterdir():
        seen += log.read_bytes()
    assert not [secret for secret in secrets if secret in seen]


@contextlib.contextmanager
def own_server(stack, port):
    """What docs/operations.md tells an operator to do on the machine of the NATS server."""
    evenflow(stack, "nats", "init", "--dir", "bus", "--host", "localhost", "--port", str(port))
    with (stack.directory / "own.log").open("wb") as log:
        process = subprocess.Popen([find_binary(), "-c", "server.conf"], cwd=stack.directory / "bus", stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def test_a_nats_server_of_ones_own_serves_with_the_folders_that_were_handed_out(tmp_path):
    port = free_port("127.0.0.1")
    handed = tmp_path / "handed-out"
    stack = Stack(tmp_path, **PACE, NATS__URL=f"nats://localhost:{port}", NATS__IDENTITIES=str(handed))
    with own_server(stack, port):
        for name in ("gateway-g1", "worker-w1"):
            folder = tmp_path / "bus" / "identities" / name
            shutil.copytree(folder, handed / name)
            for secret in ("nkey.seed", "key.pem"):  # used elsewhere, so not kept here
                (folder / secret).unlink()
        assert "has been told" in evenflow(stack, "nats", "add-worker", "w2", "--dir", "bus")  # and all stay in force
        stack.start()
        try:
            assert len(stamps(stack, threading.Semaphore(0))) == 100
        finally:
            stack.stop()
