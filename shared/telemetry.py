"""Logs and metrics: structlog as JSON lines, OpenTelemetry metrics with a Prometheus reader. Traces: `shared.tracing`.

Every attribute and metric name stands here and nowhere else. GenAI names follow OpenTelemetry's semantic conventions,
kept as our own constants so that a change there is a change here. Neither prompts, answers nor keys are
ever logged; labels are bounded: models that exist, outcomes from a fixed list, never anything a client made up.
"""

import json
import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import structlog
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest

from shared.errors import EvenflowError
from shared.histogram import Histogram
from shared.outlet import Outlet

MODEL = "gen_ai.request.model"
OUTCOME = "outcome"
KIND = "kind"
WORKER = "worker"
STATE = "state"
POOL = "pool"
SERVED_MODEL = "model"
VERSION = "version"
DEVICE = "device"
DRIVER = "driver"
RUNTIME = "runtime"
KERNEL = "kernel"
BATCH = "batch"
REASON = "reason"

REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"  # noqa: S105
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"  # noqa: S105
TOKENS = "evenflow.tokens"
QUEUE_SECONDS = "evenflow.queue.duration"

# Spans, in the order in which they open, and the events in them.
SPAN_GATEWAY = "gateway"
SPAN_QUEUE = "queue"
SPAN_DISPATCH = "dispatch"
SPAN_RELAY = "relay"
SPAN_WORKER = "worker"
SPAN_PREFILL = "prefill"
SPAN_DECODE = "decode"
EVENT_FIRST_TOKEN = "first_token"  # noqa: S105
EVENT_RETRIED = "retried"
EVENT_RESUMED = "resumed"

# Attributes of spans.
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
MAX_TOKENS = "gen_ai.request.max_tokens"
CHOICES = "gen_ai.request.choice.count"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
ERROR_TYPE = "error.type"
REQUEST_ID = "evenflow.request.id"
TENANT_ID = "evenflow.tenant.id"
SPAN_OUTCOME = "evenflow.outcome"
STREAMED = "evenflow.stream"
MODEL_VERSION = "evenflow.model.version"
WORKER_NAME = "evenflow.worker.name"
ATTEMPT_CHOICE = "evenflow.attempt.choice"
ATTEMPT_NUMBER = "evenflow.attempt.number"
REFUSAL = "evenflow.refusal"
CANCELLED_FOR = "evenflow.cancelled_for"
DRAFT_ACCEPTED = "evenflow.draft.accepted"
DRAFT_PROPOSED = "evenflow.draft.proposed"
DEVICE_SECONDS = "evenflow.device.seconds"
DEVICE_KIND = "evenflow.device.kind"
DEVICE_RUNTIME = "evenflow.device.runtime"
DEVICE_KERNEL = "evenflow.device.kernel"
RESUMED_TOKENS = "evenflow.resumed.tokens"

PROVIDER_NAME = "evenflow"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_MOST_FRAMES = 20
_encode = msgspec.json.Encoder(enc_hook=repr).encode
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(service: str, level: str = "info", directory: str = "") -> None:
    """JSON lines to standard error, or to `<directory>/<service>.log`. Third-party logs come out the same way.

    A line that cannot be written (a full disk, a reader that went away) is dropped: it never breaks what it tells of.
    """
    stream: Any = sys.stderr
    if directory:
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stream = (folder / f"{service}.log").open("a", buffering=1, encoding="utf-8")
    outlet: Any = Outlet(stream)
    threshold = _LEVELS[level]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        _told_without_content,
    ]

    def stamp(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"] = service
        return event

    structlog.configure(
        processors=[*shared, stamp, structlog.processors.JSONRenderer(_json)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=outlet),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(outlet)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                stamp,
                structlog.processors.JSONRenderer(_json),
            ],
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.INFO))
    for noisy in ("uvicorn.access", "uvicorn.error", "nats", "httpx", "sqlalchemy", "alembic", "aiosqlite"):
        logging.getLogger(noisy).setLevel(max(threshold, logging.WARNING))


def _json(event: object, **_: Any) -> str:
    try:
        return _encode(event).decode()
    except (UnicodeEncodeError, TypeError):  # half a surrogate pair out of some library, or a key that is no text
        return json.dumps(event, default=repr)


def _told_without_content(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An exception as type and places: neither local variables nor a library's message, which may quote a prompt."""
    given = event.pop("exc_info", None)
    if given is True:
        given = sys.exc_info()
    error = given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event["exception"] = list(_chain(error))
    return event


def _chain(error: BaseException | None) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        places = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
        told: dict[str, Any] = {"type": type(error).__name__}
        if isinstance(error, EvenflowError | OSError):  # our own words, and the operating system's
            told["message"] = str(error)
        told["at"] = [f"{place.filename}:{place.lineno} {place.name}" for place in places]
        yield told
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                yield from _chain(inner)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class Metrics:
    """A meter with its own registry, so that several can live in one process (in tests they do)."""

    def __init__(self, service: str) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=Resource.create({"service.name": service}),
            shutdown_on_exit=False,
        )
        self.meter = self._provider.get_meter("evenflow")

    def seconds(self, name: str, description: str, *labels: str) -> Histogram:
        """A histogram of durations, under OpenTelemetry's names for it and its labels."""
        spelt = f"{name.replace('.', '_')}_seconds"
        made = Histogram(spelt, description, [label.replace(".", "_") for label in labels], SECONDS)
        self._registry.register(made)
        return made

    def scrape(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Stop the provider."""
        self._provider.shutdown()
