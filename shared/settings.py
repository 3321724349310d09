"""One frozen tree of settings, from defaults, profile, `evenflow.toml` and `EVENFLOW_*` variables, validated once.

Sections of the file are the fields of `Settings`; `EVENFLOW_NATS__URL` sets `[nats] url`. Units are in the names:
`_s` seconds, `_ms` milliseconds, `_bytes`, else counts. Secrets come by file or environment, never on a command line.
The string under a field says what it does: `docs/configuration.md` is made from it. `shared.settings_load` loads it.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Digest = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")]
HttpPath = Annotated[str, Meta(pattern=r"^/[A-Za-z0-9._/-]*$")]
Secret = Annotated[str, Meta(extra={"secret": True})]
"""Shown only as set or unset."""
Url = Annotated[str, Meta(extra={"url": True})]
"""Shown without its password."""
Profile = Literal["dev", "test", "prod"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: frozen, keyword-only, unknown keys refused."""


class GatewaySettings(_Section, frozen=True):
    """The tenants' door."""

    name: Name = "g1"
    """Name of this gateway on the bus and in telemetry; unique among gateways."""
    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all."""
    port: Port = 8080
    """Port of the OpenAI-compatible API; 0 picks a free one."""
    health_path: HttpPath = "/health"
    """Answers 200 while the process lives."""
    ready_path: HttpPath = "/ready"
    """Answers 200 while requests can be served."""
    max_connections: Positive = 4096
    """Open client connections, beyond which new ones are refused with 503."""
    shutdown_grace_s: Seconds = 30.0
    """How long open answers may go on after SIGTERM."""
    keepalive_s: Seconds = 10.0
    """How long an idle client connection is kept open."""
    trusted_proxies: str = ""
    """Networks of proxies in front, separated by commas: only their `X-Forwarded-For` says where requests come from."""

    @property
    def proxies(self) -> tuple[str, ...]:
        """`trusted_proxies`, one by one."""
        return tuple(part.strip() for part in self.trusted_proxies.split(",") if part.strip())


class AdminSettings(_Section, frozen=True):
    """The operators' door: metrics, health, the admin API."""

    host: str = "127.0.0.1"
    """Address to listen on; keep it on the loopback or a private network."""
    port: Port = 8081
    """Port of the admin API, metrics and health; 0 picks a free one."""
    offloaded: bool = False
    """A proxy in front terminates TLS: browsers are then told to send the session over TLS only."""
    session_s: Seconds = 43_200.0
    """Longest life of a login."""
    session_idle_s: Seconds = 3600.0
    """How long a login lasts without a request."""


class TlsSettings(_Section, frozen=True):
    """TLS 1.2 or newer at the tenants' door. Changed files are loaded within 2 s, or at once on SIGHUP."""

    certificate: str = ""
    """Certificate chain, PEM; empty serves plain HTTP."""
    key: str = ""
    """Private key of the certificate, PEM."""
    client_ca: str = ""
    """Authorities whose client certificates are demanded, PEM; empty demands none."""
    offloaded: bool = False
    """A proxy in front terminates TLS: profile `prod` then allows plain HTTP beyond loopback."""


class NatsSettings(_Section, frozen=True):
    """Where the bus is. An empty `url` means the embedded server of `evenflow up`."""

    url: Url = ""
    """`nats://host:port`, several separated by commas."""
    directory: str = ".evenflow/nats"
    """Where the embedded server keeps its data."""
    port: Port = 0
    """Port of the embedded server; 0 picks a free one once and keeps it."""
    credentials: Secret = ""
    """NATS credentials file."""
    identities: str = ""
    """Directory of identity folders, as `evenflow nats` makes them; each process takes the one named after it."""


class StoreSettings(_Section, frozen=True):
    """Tenants and keys. `pepper_file` holds the secret that key hashes are made with; it is created when missing."""

    url: Url = "sqlite+aiosqlite:///.evenflow/evenflow.db"
    """`sqlite+aiosqlite:///FILE` or `postgresql+asyncpg://user:password@host/database`."""
    pepper_file: str = ".evenflow/pepper"
    """Secret that keys are hashed with, 32 bytes or more; made when missing, but for profile prod. Back it up."""


class UsageSettings(_Section, frozen=True):
    """What is kept of what requests used."""

    keep_days: NonNegative = 90
    """How long the row of each request is kept; sums by day stay. 0 keeps the rows for ever."""


class DraftSettings(_Section, frozen=True):
    """Speculative decoding of one worker."""

    kind: Literal["none", "ngram", "model"] = "ngram"
    """Where drafts come from: nowhere, n-grams of the context, or a smaller model."""
    length: Positive = 5
    """Tokens to propose at once, at most."""
    size: Positive = 3
    """Length of the n-gram to look up, in tokens."""
    path: str = ""
    """File or directory of the draft model."""


class WorkerSettings(_Section, frozen=True):
    """One worker process. An empty `path` means the embedded model."""

    name: Name = "w1"
    """Unique name; the second worker of a list is `w2` if it says nothing else, and so on."""
    pool: Name = "default"
    """Workers of one pool stand in for each other."""
    engine: Literal["llamacpp", "null", "exllamav2"] = "llamacpp"
    """What runs the model; `null` runs none and answers made-up text, for load tests."""
    model: str = "smollm2-135m-instruct"
    """Model id; `null` where the engine is `null` and nothing else is said."""
    version: str = "1"
    """Version of the model, as announced."""
    path: str = ""
    """GGUF file (llamacpp) or directory (exllamav2); empty means the embedded model."""
    sha256: Digest = ""
    """Checksum that the model file must have; empty checks nothing."""
    slots: Positive = 4
    """Requests decoded at once."""
    context: Positive = 2048
    """Context of one slot, in tokens."""
    max_output: NonNegative = 0
    """Longest completion, in tokens; 0 means what the context leaves."""
    threads: NonNegative = 0
    """CPU threads of the engine; 0 means all physical cores but one."""
    batch: Positive = 64
    """Prompt tokens per engine step: smaller cancels sooner, larger prefills faster."""
    prefix_cache: bool = True
    """Keep the cache of earlier prompts to start from."""
    ahead: NonNegative = 1
    """Jobs taken beyond the free slots, so that a slot need not wait for the next one."""
    draft: DraftSettings = DraftSettings()
    null_mode: Literal["script", "hash", "pace"] = "script"
    """Null engine: all tokens at once, tokens made from the whole prefix, or paced time stamps."""
    null_rate: Annotated[float, Meta(gt=0)] = 50.0
    """Null engine, where it keeps a rhythm: tokens per second and stream."""
    null_paced: bool = False
    """Null engine: modes script and hash keep that rhythm, too; mode pace always does."""
    null_tokens: Positive = 100
    """Null engine: tokens per answer."""


class TelemetrySettings(_Section, frozen=True):
    """Logs go to standard error as JSON, or into `log_directory`, one file per process."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe events that are written."""
    log_directory: str = ""
    """Directory of log files; empty means standard error."""
    otlp_endpoint: Url = ""
    """`http://host:4318`, where traces go by OTLP over HTTP; empty makes none."""
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the requests that are traced; who sends a `traceparent` has decided for that request."""


class LimitSettings(_Section, frozen=True):
    """Bounds that hold for every tenant."""

    body_bytes: Positive = 4 * 1024 * 1024
    """Largest request body."""
    body_read_s: Seconds = 30.0
    """How long a client may take to send its body."""
    json_depth: Positive = 64
    """Deepest nesting of a request body."""
    messages: Positive = 2048
    """Messages of one request."""
    stop_strings: Positive = 16
    """Stop strings of one request."""
    stop_bytes: Positive = 256
    """Longest stop string."""
    choices: Positive = 8
    """Largest `n` of one request."""
    request_s: Seconds = 600.0
    """Longest life of a request, queue included; a client may ask for less."""
    queue_s: Seconds = 30.0
    """Longest wait for a worker."""
    queue_per_tenant: Positive = 64
    """Requests that one tenant may have waiting; 429 beyond."""
    queue_total: Positive = 1024
    """Requests that may wait in all; 503 beyond."""
    tenant_streams: Positive = 32
    """Requests that one tenant may have open, unless the tenant has its own bound."""
    long_prompt_tokens: Positive = 8192
    """From this many tokens on a prompt is long: a tenant's quotas may bound how many are in flight at once."""
    bad_keys_per_minute: Positive = 30
    """Bad keys that one source, an IPv4 address or a /64 of IPv6, may present; 429 beyond, while good keys work."""
    stream_buffer_bytes: Positive = 1024 * 1024
    """What is kept for one slow reader."""
    all_buffers_bytes: Positive = 128 * 1024 * 1024
    """What is kept for all slow readers together."""
    stalled_s: Seconds = 30.0
    """How long a client may read nothing before it counts as gone."""
    headers_after_s: Seconds = 10.0
    """A streaming answer sends its headers after this long in the queue; errors before it are HTTP statuses."""
    comment_every_s: Seconds = 5.0
    """Pause between the comments that keep a waiting stream open."""


class ModelSettings(_Section, frozen=True):
    """A public model name: which model and version it means, and its own request limits (0: the model's own)."""

    name: Annotated[str, Meta(min_length=1)]
    """Name that clients ask for."""
    model: str = ""
    """Model id that it means; empty means the same as the name."""
    version: str = ""
    """Version that it means; empty means any."""
    max_input: NonNegative = 0
    """Longest prompt, in tokens; 0 means what the context leaves."""
    max_output: NonNegative = 0
    """Longest completion, in tokens; 0 means the model's own limit."""


class Settings(_Section, frozen=True):
    """The whole tree."""

    profile: Profile = "dev"
    """A set of defaults: `dev` for a laptop, `test` for suites, `prod` for service, where more is demanded."""
    gateway: GatewaySettings = GatewaySettings()
    admin: AdminSettings = AdminSettings()
    tls: TlsSettings = TlsSettings()
    nats: NatsSettings = NatsSettings()
    store: StoreSettings = StoreSettings()
    usage: UsageSettings = UsageSettings()
    workers: tuple[WorkerSettings, ...] = (WorkerSettings(),)
    models: tuple[ModelSettings, ...] = ()
    telemetry: TelemetrySettings = TelemetrySettings()
    limits: LimitSettings = LimitSettings()

    def model(self, name: str) -> ModelSettings:
        """What is configured for a public model name; for any other name, nothing but the name."""
        return next((entry for entry in self.models if entry.name == name), ModelSettings(name=name))
