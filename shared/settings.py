"""One frozen tree of settings, from defaults, profile, `evenflow.toml` and `EVENFLOW_*` variables, validated once.

Sections of the file are the fields of `Settings`; `EVENFLOW_NATS__URL` sets `[nats] url`. Units are in the names:
`_s` seconds, `_ms` milliseconds, `_bytes`, else counts. Secrets come by file or environment, never on a command line.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Profile = Literal["dev", "test", "prod"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: frozen, keyword-only, unknown keys refused."""


class GatewaySettings(_Section, frozen=True):
    """The tenants' door."""

    name: Name = "g1"
    host: str = "127.0.0.1"
    port: Port = 8080
    health_path: str = "/health"
    ready_path: str = "/ready"
    max_connections: Positive = 4096
    shutdown_grace_s: Seconds = 30.0
    keepalive_s: Seconds = 10.0


class AdminSettings(_Section, frozen=True):
    """The operators' door: metrics and health for now."""

    host: str = "127.0.0.1"
    port: Port = 8081


class TlsSettings(_Section, frozen=True):
    """Certificate files of the tenants' door; empty means plain HTTP."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""


class NatsSettings(_Section, frozen=True):
    """Where the bus is. An empty `url` means the embedded server of `evenflow up`."""

    url: str = ""
    directory: str = ".evenflow/nats"
    port: Port = 0
    credentials: str = ""


class StoreSettings(_Section, frozen=True):
    """Tenants and keys. `pepper_file` holds the secret that key hashes are made with; it is created when missing."""

    url: str = "sqlite+aiosqlite:///.evenflow/evenflow.db"
    pepper_file: str = ".evenflow/pepper"


class DraftSettings(_Section, frozen=True):
    """Speculative decoding of one worker."""

    kind: Literal["none", "ngram", "model"] = "ngram"
    length: Positive = 5
    size: Positive = 3
    path: str = ""


class WorkerSettings(_Section, frozen=True):
    """One worker process. An empty `path` means the embedded model."""

    name: Name = "w1"
    pool: Name = "default"
    engine: Literal["llamacpp", "null", "exllamav2"] = "llamacpp"
    model: str = "smollm2-135m-instruct"
    version: str = "1"
    path: str = ""
    sha256: str = ""
    slots: Positive = 4
    context: Positive = 2048
    max_output: NonNegative = 0
    threads: NonNegative = 0
    batch: Positive = 64
    prefix_cache: bool = True
    ahead: NonNegative = 1
    draft: DraftSettings = DraftSettings()
    null_mode: Literal["script", "hash", "pace"] = "script"
    null_rate: Annotated[float, Meta(gt=0)] = 50.0
    null_tokens: Positive = 100


class TelemetrySettings(_Section, frozen=True):
    """Logs go to standard error as JSON, or into `log_directory`, one file per process."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_directory: str = ""
    otlp_endpoint: str = ""


class LimitSettings(_Section, frozen=True):
    """Bounds that hold for every tenant."""

    body_bytes: Positive = 4 * 1024 * 1024
    body_read_s: Seconds = 30.0
    json_depth: Positive = 64
    messages: Positive = 2048
    stop_strings: Positive = 16
    stop_bytes: Positive = 256
    choices: Positive = 8
    request_s: Seconds = 600.0
    queue_s: Seconds = 30.0
    queue_per_tenant: Positive = 64
    queue_total: Positive = 1024
    tenant_streams: Positive = 32
    stream_buffer_bytes: Positive = 1024 * 1024
    all_buffers_bytes: Positive = 128 * 1024 * 1024
    stalled_s: Seconds = 30.0
    headers_after_s: Seconds = 10.0
    comment_every_s: Seconds = 5.0


class ModelSettings(_Section, frozen=True):
    """A public model name: which model and version it means, and its own request limits (0: the model's own)."""

    name: str
    model: str = ""
    version: str = ""
    max_input: NonNegative = 0
    max_output: NonNegative = 0


class Settings(_Section, frozen=True):
    """The whole tree."""

    profile: Profile = "dev"
    gateway: GatewaySettings = GatewaySettings()
    admin: AdminSettings = AdminSettings()
    tls: TlsSettings = TlsSettings()
    nats: NatsSettings = NatsSettings()
    store: StoreSettings = StoreSettings()
    workers: tuple[WorkerSettings, ...] = (WorkerSettings(),)
    models: tuple[ModelSettings, ...] = ()
    telemetry: TelemetrySettings = TelemetrySettings()
    limits: LimitSettings = LimitSettings()
