"""The server's shell: two listening sockets, uvicorn behind each, and an orderly end.

uvicorn runs its shutdown hooks only after all streams have ended, so the drain is ours: on SIGTERM the gateway is not
ready at once, new requests are sent away, running streams may finish within the grace, the rest end with an error.
"""

import asyncio
import contextlib
import itertools
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence

import structlog
import uvicorn
import uvloop
from litestar import Litestar

from gateway.app import admin_app, tenant_app
from gateway.context import House
from gateway.http.connection import Connection, Stalls
from gateway.lifespan import opened
from gateway.tls import CertificateWatch, make_context
from shared import heap
from shared.errors import StartError, UnavailableError
from shared.settings import Settings
from shared.telemetry import configure_logs

log = structlog.get_logger("serve")

_LAST_WORDS_S = 2.0
_LOOK_S = 1.0


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingsError, StartError, BusError or StoreError if it cannot begin."""
    configure_logs(settings.gateway.name, settings.telemetry.log_level, settings.telemetry.log_directory)
    heap.settle()
    uvloop.run(serve(settings))


async def serve(settings: Settings) -> None:
    """The same inside a running loop."""
    gateway, admin, tls = settings.gateway, settings.admin, settings.tls
    context = make_context(tls) if tls.certificate else None
    with _listen(gateway.host, gateway.port) as tenants, _listen(admin.host, admin.port) as operators:
        async with opened(settings) as (house, store):
            servers = [_server(tenant_app(house), settings, context), _server(admin_app(house, store), settings)]
            async with asyncio.TaskGroup() as group:
                watch = _watch_certificate(group, context, settings)
                group.create_task(servers[0].serve([tenants]), name="tenants' door")
                group.create_task(servers[1].serve([operators]), name="operators' door")
                ends = [group.create_task(_let_go(servers, 2 * settings.limits.stalled_s), name="stalls"), *watch]
                group.create_task(_until_told(house, servers, ends), name="signals")


def _watch_certificate(
    group: asyncio.TaskGroup, context: ssl.SSLContext | None, settings: Settings
) -> list["asyncio.Task[None]"]:
    if context is None:
        return []
    watch = CertificateWatch(context, settings.tls)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, watch.reload)
    return [group.create_task(watch.run(), name="certificate")]


async def _let_go(servers: Sequence[uvicorn.Server], patience_s: float) -> None:
    """End connections, open or closing, whose client takes nothing."""
    stalls = Stalls(patience_s)
    while True:
        await asyncio.sleep(_LOOK_S)
        open_ones = itertools.chain.from_iterable(server.server_state.connections for server in servers)
        stalls.look(asyncio.get_running_loop().time(), open_ones)


async def _until_told(house: House, servers: Sequence[uvicorn.Server], ends: Sequence["asyncio.Task[None]"]) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()
    house.draining.set()
    log.info("draining", in_flight=house.meters.in_flight)
    await _quiet(house, house.settings.gateway.shutdown_grace_s)
    house.streams.end_all(
        UnavailableError("The gateway is shutting down.", code="draining", retry_after=1, retryable=True)
    )
    await _quiet(house, _LAST_WORDS_S)
    for server in servers:
        server.should_exit = True
    for task in ends:
        task.cancel()


async def _quiet(house: House, within_s: float) -> None:
    """Until no request is in flight, at most `within_s` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await house.meters.idle()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


def _server(app: Litestar, settings: Settings, context: ssl.SSLContext | None = None) -> _Server:
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, int(settings.gateway.keepalive_s)),
        timeout_graceful_shutdown=1,
        limit_concurrency=settings.gateway.max_connections,
        backlog=2048,
    )
    config.load()
    config.ssl = context
    return _Server(config)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener
