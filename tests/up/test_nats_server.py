"""The embedded NATS server, for real: who gets in, what it keeps, and how it comes back."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gateway.up import nats_server
from gateway.up.nats_server import HOST, USER, handshake, prepare, wait_until_ready
from gateway.up.process import _born
from gateway.up.supervisor import Supervisor
from shared.errors import StartError
from shared.settings import NatsSettings

KILLS = 100 if os.environ.get("PROVE") else 3


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def settings(tmp_path):
    return NatsSettings(directory=str(tmp_path / "state" / "nats"))


@pytest.fixture
def said():
    return []


@contextlib.asynccontextmanager
async def running(settings, tmp_path, said):
    server = prepare(settings, said.append)
    supervisor = Supervisor(logs=tmp_path, records=tmp_path, report=said.append)
    child = supervisor.start(nats_server.child(server))
    try:
        await wait_until_ready(server, 20.0)
        yield server, child
    finally:
        await supervisor.stop()


def test_port_password_and_modes_are_kept_across_runs(settings, said):
    first, again = prepare(settings, said.append), prepare(settings, said.append)
    assert (first.port, first.password) == (again.port, again.password)
    assert len(first.password) == 64
    assert mode(first.directory) == 0o700
    assert mode(first.directory / "password") == 0o600
    assert mode(first.directory / "server.conf") == 0o600
    assert first.password not in repr(first)
    assert said == []


def test_a_kept_port_is_left_only_if_something_else_has_taken_it(settings, said):
    kept = prepare(settings, said.append).port
    with socket.create_server((HOST, kept)):
        moved = prepare(settings, said.append).port
    assert moved != kept
    assert said == [f"NATS port {kept} was taken by another program; it is {moved} from now on"]
    assert prepare(settings, said.append).port == moved


def test_a_configured_port_that_is_taken_is_one_clear_line(tmp_path, said):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"{HOST}:{port}: the port is taken.*EVENFLOW_NATS__PORT"):
            prepare(NatsSettings(directory=str(tmp_path / "nats"), port=port), said.append)


def test_a_password_others_could_read_is_closed(settings, said):
    file = prepare(settings, said.append).directory / "password"
    file.chmod(0o644)
    prepare(settings, said.append)
    assert mode(file) == 0o600


async def test_only_the_password_gets_in_over_loopback_with_jetstream(settings, tmp_path, said):
    async with running(settings, tmp_path, said) as (server, child):
        info = await handshake(HOST, server.port, USER, server.password)
        assert info["jetstream"] is True
        assert info["auth_required"] is True
        assert info["max_payload"] == 8 * 1024 * 1024
        for user, password in ((USER, "wrong"), ("", ""), ("admin", server.password)):
            with pytest.raises((StartError, EOFError), match=r"Authorization|bytes read"):
                await handshake(HOST, server.port, user, password)
        command = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        assert server.password.encode() not in command
        assert server.password.encode() not in Path(f"/proc/{child.pid}/environ").read_bytes()
        assert listening(child.pid) == {("0100007F", server.port)}


def listening(pid):
    """Addresses (hexadecimal, as the kernel prints them) on which process `pid` listens, IPv4 and IPv6."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(link.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found


async def test_a_killed_server_comes_back_on_its_port_with_its_streams(settings, tmp_path, said, eventually):
    async with running(settings, tmp_path, said) as (server, child):
        await request(server, "$JS.API.STREAM.CREATE.KEEP", b'{"name":"KEEP","subjects":["keep"],"storage":"file"}')
        for number in range(1, KILLS + 1):
            stored = json.loads(await request(server, "keep", b"a message"))
            assert stored["seq"] == number
            killed = child.pid
            os.kill(killed, signal.SIGKILL)
            await eventually(lambda killed=killed: child.pid not in (None, killed))
            await wait_until_ready(server, 20.0)
        kept = json.loads(await request(server, "$JS.API.STREAM.INFO.KEEP", b""))
        assert kept["state"]["messages"] == KILLS


async def request(server, subject, body):
    """One request on a bare connection: CONNECT, SUB, PUB, and the body of the reply."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    try:
        await reader.readline()
        writer.write(
            f'CONNECT {{"user":"{USER}","pass":"{server.password}","verbose":false}}\r\nSUB answer 1\r\n'.encode()
            + f"PUB {subject} answer {len(body)}\r\n".encode()
            + body
            + b"\r\n"
        )
        while not (line := await reader.readline()).startswith(b"MSG"):
            assert line, "the server closed the connection"
            assert not line.startswith(b"-ERR"), line
        return await reader.readexactly(int(line.split()[-1]))
    finally:
        writer.close()


async def test_something_else_on_the_port_is_not_mistaken_for_the_server(settings, said):
    server = prepare(settings, said.append)

    async def impostor(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(impostor, HOST, server.port):
        with pytest.raises(StartError, match="not a NATS server"):
            await wait_until_ready(server, 0.2)


SUPERVISE = """
    import asyncio, pathlib, sys
    from gateway.up import nats_server
    from gateway.up.supervisor import Supervisor
    from shared.settings import NatsSettings
    async def main():
        here = pathlib.Path(sys.argv[1])
        server = nats_server.prepare(NatsSettings(directory=str(here / "nats")), print)
        supervisor = Supervisor(logs=here, records=here, report=print)
        child = supervisor.start(nats_server.child(server))
        await nats_server.wait_until_ready(server, 20.0)
        print(child.pid, flush=True)
        await asyncio.Event().wait()
    asyncio.run(main())
"""


async def test_killing_the_supervisor_takes_nats_server_with_it(tmp_path, eventually):
    command = [sys.executable, "-c", textwrap.dedent(SUPERVISE), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            pid = int(await asyncio.to_thread(parent.stdout.readline))
            assert "nats-server" in Path(f"/proc/{pid}/exe").readlink().name
        finally:
            parent.kill()
    await eventually(lambda: _born(pid) is None)
