"""Owner of the gateway's metrics: recorded once per request, read from the fleet when somebody scrapes.

Nothing here runs per token.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Observation

from gateway.core.fleet import Fleet, WorkerView
from gateway.services.descriptions import DESCRIPTIONS
from gateway.services.quotas import Allowances
from gateway.services.streams import Attempt, Streams
from gateway.services.turnstile import Turnstile
from shared import telemetry
from shared.histogram import Histogram
from shared.telemetry import Metrics
from shared.wire import End

if TYPE_CHECKING:
    from gateway.services.keyring import KeyringWatch
    from gateway.services.ledger import Keeper
    from gateway.services.usage_writer import UsageWriter
    from shared.otlp import SpanPipe

_STATES = ("starting", "loading", "ready", "draining", "gone")
_MOST_BUCKETS = 16  # batch sizes and versions of one worker: what a worker announces is bounded, too
_LONGEST_LABEL = 64


class Meters:
    """The instruments."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        # Counters are plain numbers, read on a scrape, and so are the histograms' buckets: OpenTelemetry's instruments
        # cost several microseconds for each of the dozen figures of a request.
        self._requests: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._counter("evenflow.requests", _reader(self._requests, telemetry.OUTCOME))
        self._counter(telemetry.TOKENS, _reader(self._tokens, telemetry.KIND))
        self._duration = self._seconds(telemetry.REQUEST_DURATION, telemetry.MODEL, telemetry.OUTCOME)
        self._ttft = self._seconds(telemetry.TIME_TO_FIRST_TOKEN, telemetry.MODEL)
        self._tpot = self._seconds(telemetry.TIME_PER_OUTPUT_TOKEN, telemetry.MODEL)
        self._queue = self._seconds(telemetry.QUEUE_SECONDS, telemetry.MODEL)

    def _seconds(self, name: str, *labels: str) -> Histogram:
        return self._metrics.seconds(name, DESCRIPTIONS[name], *labels)

    def _counter(self, name: str, read: "Read") -> None:
        self._metrics.meter.create_observable_counter(name, [read], description=DESCRIPTIONS[name])

    def _gauge(self, name: str, read: "Read", unit: str = "") -> None:
        self._metrics.meter.create_observable_gauge(name, [read], unit=unit, description=DESCRIPTIONS[name])

    @contextmanager
    def flight(self) -> Iterator[None]:
        """Count one request while it runs."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def idle(self) -> None:
        """Until no request is in flight."""
        await self._idle.wait()

    def finished(self, model: str, outcome: str, seconds: float, ttft: float | None, queued: float | None) -> None:
        """One request is over. `model` must be one that exists; times in seconds, `None` for what it never reached."""
        self._requests[model, outcome] += 1
        self._duration.record(seconds, model, outcome)
        if ttft is not None:
            self._ttft.record(ttft, model)
        if queued is not None:
            self._queue.record(queued, model)

    def ended(self, attempt: Attempt) -> None:
        """One attempt is over, perhaps after its client had left: its worker's own count of tokens."""
        terminal, model = attempt.terminal, attempt.model
        if terminal is None:
            return
        usage = terminal.usage
        decode_s = terminal.timings.decode_ms / 1000 if isinstance(terminal, End) else 0.0
        for kind, count in (
            ("prompt", usage.prompt),
            ("cached", usage.cached),
            ("completion", usage.completion),
            ("draft_accepted", usage.accepted),
            ("draft_proposed", usage.proposed),
        ):
            self._tokens[model, kind] += count
        if usage.completion > 1 and decode_s > 0:
            self._tpot.record(decode_s / (usage.completion - 1), model)

    def scrape(self) -> bytes:
        """Prometheus' text format."""
        return self._metrics.scrape()

    def watch(self, fleet: Fleet, streams: Streams, turnstile: Turnstile, quotas: Allowances) -> None:
        """Register the gauges that are read on a scrape."""

        def gauge(name: str, read: Callable[[], float], unit: str = "") -> None:
            self._gauge(name, lambda _options: [Observation(read())], unit)

        gauge("evenflow.requests.in_flight", lambda: self.in_flight)
        gauge("evenflow.queue.length", lambda: len(turnstile.line))
        gauge("evenflow.streams.open", lambda: len(streams))
        gauge("evenflow.streams.held", quotas.streams)
        gauge("evenflow.streams.buffered", lambda: streams.buffered_bytes, "By")
        counters = streams.end.counters
        for name in counters.__struct_fields__:
            self._counter(f"evenflow.protocol.{name}", _field(counters, name))

        def per_worker(name: str, read: Callable[[WorkerView], float], unit: str = "") -> None:
            def observe(_options: CallbackOptions) -> Iterable[Observation]:
                return [Observation(read(view), {telemetry.WORKER: view.wid}) for view in fleet.workers.values()]

            self._gauge(name, observe, unit)

        per_worker("evenflow.worker.slots", lambda v: v.ann.slots.total)
        per_worker("evenflow.worker.slots.free", lambda v: v.ann.slots.free)
        per_worker("evenflow.worker.slots.prefill", lambda v: v.ann.slots.prefill)
        per_worker("evenflow.worker.slots.decode", lambda v: v.ann.slots.decode)
        per_worker("evenflow.worker.queue", lambda v: v.ann.queue)
        per_worker("evenflow.worker.in_flight", lambda v: v.ours)
        per_worker("evenflow.worker.kv.total", lambda v: v.ann.kv.total)
        per_worker("evenflow.worker.kv.free", lambda v: v.ann.kv.free)
        per_worker("evenflow.worker.prefill.speed", lambda v: v.ann.speed.prefill_tps)
        per_worker("evenflow.worker.decode.bound", lambda v: v.ann.speed.bound_tps)
        per_worker("evenflow.worker.draft.length", lambda v: v.ann.draft.length)
        per_worker("evenflow.worker.load.progress", lambda v: v.ann.load_progress)
        per_worker("evenflow.worker.memory", lambda v: v.ann.device.memory, "By")
        per_worker("evenflow.worker.draft.proposed", lambda v: v.ann.draft.proposed)
        per_worker("evenflow.worker.draft.accepted", lambda v: v.ann.draft.accepted)
        per_worker("evenflow.worker.tokens_per_step", lambda v: v.ann.draft.tokens_per_step)

        def states(_options: CallbackOptions) -> Iterable[Observation]:
            for view in fleet.workers.values():
                now = "gone" if view.gone else view.ann.state
                for state in _STATES:
                    yield Observation(int(state == now), {telemetry.WORKER: view.wid, telemetry.STATE: state})

        self._gauge("evenflow.worker.state", states)
        self._gauge("evenflow.worker.info", lambda _: _infos(fleet))
        self._gauge("evenflow.worker.itl", lambda _: _latencies(fleet), "s")

    def watch_usage(self, writer: "UsageWriter", keeper: "Keeper") -> None:
        """Register what tells whether usage is on record."""

        def count(name: str, read: Callable[[], float]) -> None:
            self._counter(name, lambda _options: [Observation(read())])

        def gauge(name: str, read: Callable[[], float]) -> None:
            self._gauge(name, lambda _options: [Observation(read())])

        gauge("evenflow.usage.open", lambda: len(writer))
        gauge("evenflow.usage.unconfirmed", lambda: len(writer.backlog))
        count("evenflow.usage.written", lambda: writer.written)
        count("evenflow.usage.dropped", writer.backlog.dropped.total)
        gauge("evenflow.ledger.holding", lambda: keeper.holding)
        gauge("evenflow.ledger.position", lambda: keeper.position)
        gauge("evenflow.ledger.open", lambda: keeper.ledger.open)
        count("evenflow.ledger.rows", lambda: keeper.written)
        count("evenflow.ledger.pruned", lambda: keeper.pruned)
        count("evenflow.ledger.reconciled", lambda: keeper.reconciled)
        count("evenflow.ledger.lost", lambda: keeper.gaps)

    def watch_keys(self, watch: "KeyringWatch") -> None:
        """Register what tells whether the keys are those of the store."""
        self._gauge("evenflow.keyring.stale", lambda _: [Observation(watch.stale_s)], "s")

    def watch_traces(self, pipe: "SpanPipe") -> None:
        """Register the counters of spans on their way out."""
        self._counter("evenflow.telemetry.exported", lambda _: [Observation(pipe.exported)])

        def dropped(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(count, {telemetry.REASON: why}) for why, count in pipe.dropped.items()]

        self._counter("evenflow.telemetry.dropped", dropped)


Read = Callable[[CallbackOptions], Iterable[Observation]]


def _field(counters: object, name: str) -> Read:
    return lambda _options: [Observation(getattr(counters, name))]


def _reader(counts: Counter[tuple[str, str]], label: str) -> Read:
    return lambda _options: [
        Observation(count, {telemetry.MODEL: model, label: value}) for (model, value), count in counts.items()
    ]


def _infos(fleet: Fleet) -> Iterator[Observation]:
    """1 for each version that each worker serves, with what it runs on as labels."""
    for view in fleet.workers.values():
        device = view.ann.device
        for version in view.ann.versions[:_MOST_BUCKETS]:
            labels = {
                telemetry.WORKER: view.wid,
                telemetry.POOL: view.ann.pool,
                telemetry.SERVED_MODEL: version.model,
                telemetry.VERSION: version.version,
                telemetry.DEVICE: device.kind,
                telemetry.DRIVER: device.driver,
                telemetry.RUNTIME: device.runtime,
                telemetry.KERNEL: device.kernel,
            }
            yield Observation(1, {name: value[:_LONGEST_LABEL] for name, value in labels.items()})


def _latencies(fleet: Fleet) -> Iterator[Observation]:
    """Inter-token latency in seconds, by how many requests the worker decoded at once."""
    for view in fleet.workers.values():
        for batch, milliseconds in sorted(view.ann.speed.itl_ms.items())[:_MOST_BUCKETS]:
            yield Observation(milliseconds / 1000, {telemetry.WORKER: view.wid, telemetry.BATCH: batch})
