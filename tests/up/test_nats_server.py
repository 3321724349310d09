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
from gateway.up.nats_server import HOST, handshake, prepare, wait_until_ready
from gateway.up.process import _born
from gateway.up.supervisor import Supervisor
from shared.bus import Bus
from shared.errors import StartError
from shared.identity import find_identity
from shared.settings import NatsSettings

WANTED = [("gateway", "g1"), ("worker", "w1")]
KILLS = 100 if os.environ.get("EVENFLOW_PROVE") == "1" else 3


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
    server = prepare(settings, WANTED, said.append)
    supervisor = Supervisor(logs=tmp_path, records=tmp_path, report=said.append)
    child = supervisor.start(nats_server.child(server))
    try:
        await wait_until_ready(server, 20.0)
        yield server, child
    finally:
        await supervisor.stop()


def files(directory):
    """Every file with secrets or names of the bus, and what is in it."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_port_keys_certificates_and_modes_are_kept_across_runs(settings, said):
    first = prepare(settings, WANTED, said.append)
    before = files(first.directory)
    again = prepare(settings, WANTED, said.append)
    assert files(again.directory) == before
    assert first == again
    assert {name for name in before if name.endswith("nkey.seed")} == {
        f"identities/{who}/nkey.seed" for who in ("provision", "gateway-g1", "worker-w1")
    }
    assert {mode(path) for path in first.directory.rglob("*") if path.is_dir()} == {0o700}
    assert {mode(first.directory / name) for name in before} == {0o600}
    assert said == []


def test_a_kept_port_is_left_only_if_something_else_has_taken_it(settings, said):
    kept = prepare(settings, WANTED, said.append).port
    with socket.create_server((HOST, kept)):
        moved = prepare(settings, WANTED, said.append).port
    assert moved != kept
    assert said == [f"NATS port {kept} was taken by another program; it is {moved} from now on"]
    assert prepare(settings, WANTED, said.append).port == moved


def test_a_configured_port_that_is_taken_is_one_clear_line(tmp_path, said):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"{HOST}:{port}: the port is taken.*EVENFLOW_NATS__PORT"):
            prepare(NatsSettings(directory=str(tmp_path / "nats"), port=port), WANTED, said.append)


def test_a_secret_others_could_read_is_closed(settings, said):
    folder = prepare(settings, WANTED, said.append).identities / "worker-w1"
    for file in ("nkey.seed", "key.pem"):
        (folder / file).chmod(0o644)
    prepare(settings, WANTED, said.append)
    assert (mode(folder / "nkey.seed"), mode(folder / "key.pem")) == (0o600, 0o600)


def test_a_name_of_two_kinds_is_refused_in_one_clear_line(settings, said):
    with pytest.raises(StartError, match="'same' is the name of a gateway already"):
        prepare(settings, [("gateway", "same"), ("worker", "same")], said.append)


async def test_only_identities_get_in_over_loopback_with_jetstream(settings, tmp_path, said):
    async with running(settings, tmp_path, said) as (server, child):
        for kind, name in (*WANTED, ("provision", "provision")):
            info = await handshake(HOST, server.port, find_identity(str(server.identities), kind, name))
            assert info["jetstream"] is True
            assert info["auth_required"] is True
            assert info["tls_verify"] is True
            assert info["max_payload"] == 8 * 1024 * 1024
        stranger = prepare(NatsSettings(directory=str(tmp_path / "other")), WANTED, said.append)
        with pytest.raises((StartError, OSError, EOFError), match=r"ours|certificate|bytes read"):
            await handshake(HOST, server.port, find_identity(str(stranger.identities), "worker", "w1"))
        seen = Path(f"/proc/{child.pid}/cmdline").read_bytes() + Path(f"/proc/{child.pid}/environ").read_bytes()
        seen += (tmp_path / "nats.log").read_bytes() + server.url.encode() + repr(server).encode()
        for folder in server.identities.iterdir():
            assert (folder / "nkey.seed").read_bytes().strip() not in seen
            assert (folder / "key.pem").read_bytes().splitlines()[1] not in seen
        assert listening(child.pid) == {("0100007F", server.port)}


async def test_plain_text_gets_not_even_a_greeting(settings, tmp_path, said):
    async with running(settings, tmp_path, said) as (server, _):
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        try:
            assert await reader.read() == b"", "TLS comes first: nothing is said before it"
        except ConnectionResetError:
            pass
        finally:
            writer.close()


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
        stream = b'{"name":"KEEP","subjects":["ef.usage.g.*"],"storage":"file"}'
        made = await request(server, "provision", "$JS.API.STREAM.CREATE.KEEP", stream)
        assert "error" not in json.loads(made), made
        for number in range(1, KILLS + 1):
            stored = json.loads(await request(server, "gateway", "ef.usage.g.g1", b"a message"))
            assert stored["seq"] == number
            killed = child.pid
            os.kill(killed, signal.SIGKILL)
            await eventually(lambda killed=killed: child.pid not in (None, killed))
            await wait_until_ready(server, 20.0)
        kept = json.loads(await request(server, "provision", "$JS.API.STREAM.INFO.KEEP", b""))
        assert kept["state"]["messages"] == KILLS


async def request(server, kind, subject, body):
    """One request of `provision` or of gateway g1, and the body of the reply."""
    name = {"provision": "provision", "gateway": "g1"}[kind]
    bus = Bus(name, os.urandom(4).hex())
    await bus.connect(server.url, identity=find_identity(str(server.identities), kind, name))
    replies = asyncio.Queue()
    try:
        await bus.subscribe(f"{bus.inbox}.>", replies.put)
        await bus.publish(subject, body, reply=f"{bus.inbox}.r")
        return (await asyncio.wait_for(replies.get(), 10)).data
    finally:
        await bus.close()


async def test_something_else_on_the_port_is_not_mistaken_for_the_server(settings, said):
    server = prepare(settings, WANTED, said.append)

    looks = 0

    async def impostor(reader, writer):
        nonlocal looks
        looks += 1
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(impostor, HOST, server.port):
        with pytest.raises(StartError, match="not a NATS server"):
            await wait_until_ready(server, 60, lambda: looks >= 2)


async def test_a_last_look_cut_short_does_not_hide_what_was_seen(settings, said, monkeypatch):
    answers = iter([StartError("certificate unknown")])

    async def looked(*_args):
        for error in answers:
            raise error
        await asyncio.Event().wait()

    monkeypatch.setattr(nats_server, "handshake", looked)
    with pytest.raises(StartError, match="certificate unknown"):
        await wait_until_ready(prepare(settings, WANTED, said.append), 0.2)


SUPERVISE = """
    import asyncio, pathlib, sys
    from gateway.up import nats_server
    from gateway.up.supervisor import Supervisor
    from shared.settings import NatsSettings
    async def main():
        here = pathlib.Path(sys.argv[1])
        server = nats_server.prepare(NatsSettings(directory=str(here / "nats")), [], print)
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
