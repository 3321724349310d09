"""What single keys cannot say: which settings must agree with each other before anything starts."""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from shared.settings import Settings, WorkerSettings
from shared.settings_schema import mask_url

SQLITE = "sqlite+aiosqlite:///"
POSTGRESQL = "postgresql+asyncpg://"


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong: the key to change, why, and every key that the judgement rests on."""

    path: str
    message: str
    about: tuple[str, ...] = ()


def check(settings: Settings) -> list[Problem]:
    """Everything that does not fit together, in the order of the tree."""
    return [
        *_doors(settings),
        *_tls(settings),
        *_bus_and_store(settings),
        *_workers(settings),
        *_unique("models", "name", [model.name for model in settings.models]),
        *_limits(settings),
    ]


def _doors(settings: Settings) -> Iterator[Problem]:
    gateway, admin = settings.gateway, settings.admin
    if gateway.port == admin.port and gateway.port:
        both = ("gateway.port", "admin.port")
        yield Problem("admin.port", f"{admin.port} is gateway.port too; the two doors need different ports", both)
    for proxy in gateway.proxies:
        if wrong := _no_network(proxy):
            yield Problem("gateway.trusted_proxies", f"must be networks: {wrong}", ("gateway.trusted_proxies",))
    if gateway.health_path == gateway.ready_path:
        both = ("gateway.health_path", "gateway.ready_path")
        yield Problem("gateway.ready_path", f"{gateway.ready_path!r} is gateway.health_path too", both)
    for key in ("health_path", "ready_path"):
        if getattr(gateway, key).startswith("/v1/"):
            yield Problem(f"gateway.{key}", "must not lie under /v1/, which is the API", (f"gateway.{key}",))
    if not settings.nats.url and settings.nats.port in {gateway.port, admin.port} - {0}:
        ports = ("nats.port", "gateway.port", "admin.port")
        yield Problem("nats.port", f"{settings.nats.port} is the port of one of the doors", ports)


def _no_network(text: str) -> str:
    """Why it is none; empty if it is one."""
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        return str(error)
    return f"{text!r} names an interface" if "%" in text else ""


def _tls(settings: Settings) -> Iterator[Problem]:
    tls = settings.tls
    if tls.certificate and not tls.key:
        yield Problem("tls.key", "must be set, as tls.certificate is", ("tls.key",))
    if tls.key and not tls.certificate:
        yield Problem("tls.certificate", "must be set, as tls.key is", ("tls.certificate",))
    if tls.client_ca and not tls.certificate:
        yield Problem("tls.client_ca", "needs tls.certificate and tls.key", ("tls.client_ca", "tls.certificate"))
    host = settings.gateway.host
    if settings.profile == "prod" and not (tls.certificate or tls.offloaded or _is_loopback(host)):
        about = ("tls.certificate", "tls.offloaded", "gateway.host")
        yield Problem("tls.certificate", f"must be set: keys would cross {host!r} in plain text", about)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bus_and_store(settings: Settings) -> Iterator[Problem]:
    if settings.profile == "prod" and not settings.nats.url:
        yield Problem("nats.url", "must be set in profile prod: only dev and test embed a server", ("nats.url",))
    url = settings.store.url
    whole = (url.startswith(SQLITE) and len(url) > len(SQLITE)) or url.startswith(POSTGRESQL)
    if not whole or ":memory:" in url:
        right = f"{SQLITE}FILE or {POSTGRESQL}user:password@host/database"
        yield Problem("store.url", f"{mask_url(url)!r} must be {right}", ("store.url",))
    if not settings.store.pepper_file:
        yield Problem("store.pepper_file", "must name a file", ("store.pepper_file",))


def _workers(settings: Settings) -> Iterator[Problem]:
    yield from _unique("workers", "name", [worker.name for worker in settings.workers])
    for index, worker in enumerate(settings.workers):
        yield from _worker(f"workers.{index}", worker, settings.profile)


def _worker(path: str, worker: WorkerSettings, profile: str) -> Iterator[Problem]:
    if profile == "prod" and worker.engine == "null":
        yield Problem(
            f"{path}.engine", "must not be null in profile prod: it answers made-up text", (f"{path}.engine",)
        )
    if worker.engine == "exllamav2" and not worker.path:
        both = (f"{path}.path", f"{path}.engine")
        yield Problem(f"{path}.path", "must name the directory of a model: exllamav2 embeds none", both)
    if worker.draft.kind == "model" and not worker.draft.path:
        both = (f"{path}.draft.path", f"{path}.draft.kind")
        yield Problem(f"{path}.draft.path", f"must name the draft model, as {path}.draft.kind is model", both)
    if worker.max_output > worker.context:
        both = (f"{path}.max_output", f"{path}.context")
        yield Problem(f"{path}.max_output", f"{worker.max_output} is more than the context of {worker.context}", both)


def _limits(settings: Settings) -> Iterator[Problem]:
    for small, large in (("queue_per_tenant", "queue_total"), ("stream_buffer_bytes", "all_buffers_bytes")):
        low, high = getattr(settings.limits, small), getattr(settings.limits, large)
        if low > high:
            both = (f"limits.{small}", f"limits.{large}")
            yield Problem(f"limits.{small}", f"{low} is more than limits.{large}, which is {high}", both)


def _unique(section: str, key: str, values: Sequence[str]) -> Iterable[Problem]:
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        earlier = first.setdefault(value, index)
        if earlier != index:
            mine, other = f"{section}.{index}.{key}", f"{section}.{earlier}.{key}"
            yield Problem(mine, f"{value!r} is {other} too; names are unique", (mine, other))
