"""Traces: the spans of one request, from the client's `traceparent` to the last token.

Whoever makes a span holds a `Trace` and passes it on; nothing hides in context variables. Where no spans are wanted
(no receiver is configured, or the request was not sampled) the same calls reach a `Trace` that does nothing but carry
the `traceparent` on, so that the steps need no questions. Spans hold names, numbers and codes: neither prompts, answers
and keys nor the messages of errors, which may quote them.
"""

import asyncio
import re
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from shared import telemetry
from shared.errors import ClientGoneError, HttpError
from shared.settings import TelemetrySettings

if TYPE_CHECKING:
    from shared.otlp import SpanPipe

HEADER: Final = "traceparent"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NOWHERE = Context()

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]
Kind = Literal["internal", "server", "producer", "consumer"]
_KINDS: dict[Kind, api.SpanKind] = {
    "internal": api.SpanKind.INTERNAL,
    "server": api.SpanKind.SERVER,
    "producer": api.SpanKind.PRODUCER,
    "consumer": api.SpanKind.CONSUMER,
}


class Trace:
    """One span, as its `with` block or `end` closes it. This one is none: it only carries `traceparent` on."""

    __slots__ = ("_carried",)

    recording: ClassVar[bool] = False
    """Whether it is worth working out attributes."""

    def __init__(self, traceparent: str | None = None) -> None:
        self._carried = traceparent

    @property
    def traceparent(self) -> str | None:
        """What names this span to another process (W3C Trace Context); None if there is no trace."""
        return self._carried

    @property
    def trace_id(self) -> str | None:
        """32 hexadecimal digits; None if there is no trace."""
        carried = self.traceparent
        return None if carried is None else carried[3:35]

    def headers(self) -> dict[str, str] | None:
        """Headers for a message to another process; None if there is no trace."""
        carried = self.traceparent
        return None if carried is None else {HEADER: carried}

    def step(self, name: str, kind: Kind = "internal") -> "Trace":  # noqa: ARG002
        """A span below this one, open from now on."""
        return self

    def describe(self, attributes: Attributes) -> None:
        """Add attributes, named in `shared.telemetry`."""

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Something happened now."""

    def failed(self, error: BaseException) -> None:
        """It ended with `error`. What the client did wrong is told, but is no fault of the span."""

    def fault(self, code: str) -> None:
        """It ended badly, and `code` says how."""

    def end(self) -> None:
        """It is over. Once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)
        self.end()


NO_TRACE: Final = Trace()


class _Recorded(Trace):
    """A span that is written down."""

    __slots__ = ("_context", "_span", "_tracer")

    recording = True

    def __init__(self, tracer: api.Tracer, span: api.Span) -> None:
        super().__init__()
        self._tracer = tracer
        self._span = span
        self._context: Context | None = None

    @property
    def traceparent(self) -> str | None:
        if self._carried is None:
            self._carried = _written(self._span.get_span_context())
        return self._carried

    def step(self, name: str, kind: Kind = "internal") -> Trace:
        if self._context is None:
            self._context = api.set_span_in_context(self._span, _NOWHERE)
        return _Recorded(self._tracer, self._tracer.start_span(name, self._context, _KINDS[kind]))

    def describe(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        self._span.add_event(name, attributes)

    def failed(self, error: BaseException) -> None:
        match error:
            case ClientGoneError() | asyncio.CancelledError():
                self._span.set_attribute(telemetry.ERROR_TYPE, "cancelled")
            case HttpError() if error.status < HttpError.status:
                self._span.set_attribute(telemetry.ERROR_TYPE, error.code or "error")
            case HttpError():
                self.fault(error.code or "error")
            case _:
                self.fault(type(error).__name__)

    def fault(self, code: str) -> None:
        self._span.set_attribute(telemetry.ERROR_TYPE, code)
        self._span.set_status(api.StatusCode.ERROR, code)

    def end(self) -> None:
        self._span.end()


class Tracing:
    """Makes the traces of one process. Without a `processor` none are made, and nothing is spent on them."""

    def __init__(
        self,
        service: str = "",
        instance: str = "",
        *,
        sample_ratio: float = 1.0,
        processor: SpanProcessor | None = None,
    ) -> None:
        self.pipe: SpanPipe | None = None
        self._tracer: api.Tracer | None = None
        if processor is None:
            return
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create({"service.name": service, "service.instance.id": instance}),
            span_limits=SpanLimits(max_span_attributes=48, max_events=32, max_attribute_length=256),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("evenflow")

    @classmethod
    def configured(cls, service: str, instance: str, settings: TelemetrySettings) -> Self:
        """As the settings say: spans go to their receiver, or are not made. To be closed."""
        if not settings.otlp_endpoint:
            return cls()
        from shared.otlp import span_pipe  # noqa: PLC0415 -- its libraries take memory that only traces need

        pipe = span_pipe(settings.otlp_endpoint)
        made = cls(service, instance, sample_ratio=settings.sample_ratio, processor=pipe)
        made.pipe = pipe
        return made

    async def close(self) -> None:
        """Send the last spans, which takes little time or fails. Never raises."""
        if self.pipe is not None:
            await asyncio.to_thread(self.pipe.close)

    def open(self, name: str, traceparent: str | None, kind: Kind = "server") -> Trace:
        """The first span here of a trace that another process may have begun: `traceparent` is its header, if any.

        A header that W3C Trace Context does not allow counts as none. Who began the trace has also decided whether it
        is sampled; where it begins here, the ratio decides.
        """
        parent = None if traceparent is None else parse(traceparent)
        if self._tracer is None:
            return NO_TRACE if parent is None else Trace(traceparent)
        context = _NOWHERE if parent is None else api.set_span_in_context(api.NonRecordingSpan(parent), _NOWHERE)
        span = self._tracer.start_span(name, context, _KINDS[kind])
        return _Recorded(self._tracer, span) if span.is_recording() else Trace(_written(span.get_span_context()))


def parse(traceparent: str) -> api.SpanContext | None:
    """The span that a `traceparent` header names (https://www.w3.org/TR/trace-context/#traceparent-header), or None."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    sampled = api.TraceFlags(int(flags, 16))
    return api.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=sampled)


def _written(span: api.SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
