"""`evenflow up`: from an empty directory to a served answer, and from a signal to a clean end.

    lock -> directories, ports -> certificate -> NATS -> workers | demo key, first admin -> gateway -> ready
    -> one answer -> serve -> stop

Exit status: 0 after a signal, 2 when it could not start, 78 (EX_CONFIG) when a part said that its configuration can
never work.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
from msgspec.structs import replace

from gateway.core.restarts import EX_CONFIG
from gateway.up import children, nats_server
from gateway.up.dev_certificates import keep_dev_certificates
from gateway.up.files import check_port, check_space, exclusive, free_port, leave_nothing, private_directory
from gateway.up.process import ChildSpec, end_leftovers
from gateway.up.recipes import recipes
from gateway.up.supervisor import Supervisor
from gateway.up.terminal import Terminal
from shared.errors import SettingsError, StartError, StoreError
from shared.settings import NatsSettings, Settings
from shared.settings_load import to_environment

if TYPE_CHECKING:
    from gateway.up import door

EX_START = 2
_NATS_READY_S = 20.0
_EVERYWHERE = ("", "0.0.0.0", "::")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of `evenflow up`; what its other flags say is in the settings already."""

    answer: bool = True
    tls: bool = False
    state: Path = Path(".evenflow")


async def _demo_key(settings: Settings, state: Path) -> str:
    from gateway.up.demo import demo_key  # noqa: PLC0415 - SQLAlchemy is slow to import: the workers load meanwhile

    return await demo_key(settings, state)


async def _first_admin(settings: Settings, state: Path) -> bool:
    from gateway.up.first_admin import first_admin  # noqa: PLC0415 - the same

    return await first_admin(settings, state)


async def _make_streams(settings: NatsSettings) -> None:
    from gateway.up.provision import make_streams  # noqa: PLC0415 - the NATS client, too

    await make_streams(settings)


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What is started, and how the streams of the bus, the demo key and the first admin are made."""

    workers: Callable[[Settings, Mapping[str, str]], list[ChildSpec]] = children.workers
    gateway: Callable[[Settings, Mapping[str, str]], ChildSpec] = children.gateway
    streams: Callable[[NatsSettings], Awaitable[None]] = _make_streams
    key: Callable[[Settings, Path], Awaitable[str]] = _demo_key
    admin: Callable[[Settings, Path], Awaitable[bool]] = _first_admin


def run(
    settings: Settings, options: UpOptions | None = None, *, parts: Parts | None = None, out: TextIO | None = None
) -> int:
    """Run everything until a signal; return the exit status. Call it from the main thread."""
    options, terminal = options or UpOptions(), Terminal(out or sys.stdout)
    began = time.monotonic()
    fresh = not options.state.exists()
    try:
        runs, bus = private_directory(options.state / "run"), private_directory(Path(settings.nats.directory))
        # Two locks, as the two directories are two settings, and neither may have two owners.
        with exclusive(bus / "lock"), exclusive(runs / "lock"):
            try:
                return asyncio.run(_Up(settings, options, parts or Parts(), terminal, began).run())
            except StartError:
                if fresh:
                    leave_nothing(options.state, {runs / "lock", bus / "lock"})
                raise
    except StartError as error:
        terminal.clear()
        Terminal(sys.stderr).line(f"evenflow up: {error}")
        return EX_START
    except KeyboardInterrupt:  # before the loop had its handlers: nothing had been started
        return 0


class _Up:
    """One run, from its lock to its last child."""

    def __init__(self, settings: Settings, options: UpOptions, parts: Parts, terminal: Terminal, began: float) -> None:
        self._settings = settings
        self._options = options
        self._parts = parts
        self._terminal = terminal
        self._began = began
        self._stop = asyncio.Event()
        self._authority = ""
        logs, self._records = (private_directory(options.state / name) for name in ("log", "run"))
        self._supervisor = Supervisor(logs=logs, records=self._records, report=terminal.line)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for signal_ in _SIGNALS:
            loop.add_signal_handler(signal_, self._signalled)
        start = asyncio.create_task(self._start())
        ends = {asyncio.create_task(self._stop.wait()), asyncio.create_task(self._supervisor.failed.wait())}
        try:
            await asyncio.wait({start, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if start.done() and start.exception() is None:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (start, *ends):
                task.cancel()
            await asyncio.gather(start, *ends, return_exceptions=True)
            await self._end()
        if not start.cancelled():
            start.result()  # a start that failed: its StartError is the one line
        return EX_CONFIG if self._supervisor.failed.is_set() and not self._stop.is_set() else 0

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._supervisor.hurry()
        self._stop.set()

    async def _end(self) -> None:
        if not self._supervisor.children:
            return
        grace_s = self._settings.gateway.shutdown_grace_s
        self._terminal.line(f"stopping: open answers have up to {grace_s:.0f} s; a second signal cuts that short")
        await self._supervisor.stop()
        self._terminal.line("stopped")

    async def _start(self) -> None:
        state = self._options.state
        check_space(state)
        for name in await end_leftovers(self._records):
            self._terminal.line(f"{name} of an earlier run was still there and has been ended")
        settings = await self._bus(self._tls(self._ports()))
        environment = to_environment(settings)
        for spec in self._parts.workers(settings, environment):
            self._supervisor.start(spec)
        try:
            key = await self._parts.key(settings, state)
            knows_admin = await self._parts.admin(settings, state)
        except (StoreError, SettingsError) as error:
            raise StartError(str(error)) from error
        self._supervisor.start(self._parts.gateway(settings, environment))
        await self._streams(settings.nats)  # while the gateway loads
        await self._welcome(settings, key, knows_admin=knows_admin)

    def _ports(self) -> Settings:
        """Check that both doors can be opened; a port of 0 becomes a free one, the same for every restart."""
        settings = self._settings
        for section in ("gateway", "admin"):
            door = getattr(settings, section)
            if door.port:
                check_port(door.host, door.port, f"EVENFLOW_{section.upper()}__PORT")
            else:
                settings = replace(settings, **{section: replace(door, port=free_port(door.host))})
        return settings

    def _tls(self, settings: Settings) -> Settings:
        """With `--tls`: the development certificate, made or kept, unless the settings have one of the operator's."""
        certificate, host = settings.tls.certificate, settings.gateway.host
        if not self._options.tls:
            return settings
        if certificate:
            self._terminal.line(f"--tls: {certificate} is set and served; no development certificate is made")
            return settings
        if settings.profile == "prod":
            raise StartError("--tls makes a development certificate: in profile prod set tls.certificate and tls.key")
        kept = keep_dev_certificates(self._options.state / "tls", [] if host in _EVERYWHERE else [host])
        self._authority = str(kept.authority)
        self._terminal.line(f"TLS for {', '.join(kept.names)}; clients trust {kept.authority}")
        return replace(settings, tls=replace(settings.tls, certificate=str(kept.certificate), key=str(kept.key)))

    async def _bus(self, settings: Settings) -> Settings:
        """Start the embedded NATS unless the settings name a server; return settings that say where it is."""
        if settings.nats.url:
            return settings
        began = time.monotonic()
        server = nats_server.prepare(settings.nats, children.identities(settings), self._terminal.line)
        child = self._supervisor.start(nats_server.child(server))
        await nats_server.wait_until_ready(server, _NATS_READY_S, lambda: child.given_up)
        self._terminal.line(f"NATS is up on {nats_server.HOST}:{server.port} ({time.monotonic() - began:.2f} s)")
        return replace(settings, nats=replace(settings.nats, url=server.url, identities=str(server.identities)))

    async def _streams(self, nats: NatsSettings) -> None:
        """Make the streams. On a server of the operator's own that may be somebody else's right."""
        try:
            await self._parts.streams(nats)
        except (StartError, SettingsError) as error:
            if not self._settings.nats.url:
                raise StartError(str(error)) from error
            self._terminal.line(f"{error}; usage waits in memory until `evenflow nats streams` has made its stream")

    async def _welcome(self, settings: Settings, key: str, *, knows_admin: bool) -> None:
        """Wait until the door is open, show one real answer, and say how to get the next."""
        from gateway.up import door  # noqa: PLC0415 - httpx is slow to import: the children load meanwhile

        terminal = self._terminal
        async with door.client(settings, self._authority) as http:
            await door.wait_until_ready(http, settings.gateway.ready_path, terminal.wait)
            url = door.base_url(settings)
            terminal.line(f"ready on {url} ({time.monotonic() - self._began:.1f} s after the start)")
            model = _model(settings)
            if self._options.answer and model:
                await self._answer(door.ask(http, key, model, terminal.piece), terminal)
        key_file = self._options.state / "demo.key"
        trust = {"certificate": settings.tls.certificate, "authority": self._authority}
        terminal.line(recipes(url, key_file, model or "MODEL", **trust))
        login = f", as admin with the password in {self._options.state / 'admin.password'}" if knows_admin else ""
        terminal.line(f"dashboard on {door.admin_url(settings)}{login}")
        terminal.line("serving until Ctrl-C")

    async def _answer(self, asking: "Awaitable[door.Measured]", terminal: Terminal) -> None:
        try:
            told = await asking
        except StartError as error:
            terminal.line(f"\n{error}; still serving")
            return
        speed = f", {told.tokens_per_s:.1f} tokens/s" if told.tokens_per_s else ""
        if any(worker.engine == "null" for worker in self._settings.workers):
            speed = ", null engine"  # it runs no model: a rate would say nothing
        terminal.line(
            f"\n({told.prompt_tokens} prompt + {told.completion_tokens} completion tokens, "
            f"first after {told.first_s * 1000:.0f} ms{speed})"
        )


def _model(settings: Settings) -> str:
    """Return a model name that a tenant can ask for, or nothing where none is configured here."""
    if settings.models:
        return settings.models[0].name
    return settings.workers[0].model if settings.workers else ""
