"""Traces: the spans of one request, from the client's `traceparent` to the last token.

Whoever makes a span holds a `Trace` and passes it on; nothing hides in context variables. Where no spans are wanted
(no receiver is configured, or the request was not sampled) the same calls reach a `Trace` that does nothing but carry
the `traceparent` on, so that the steps need no questions. Spans hold names, numbers and codes: neither prompts, answers
and keys nor the messages of errors, which may quote them.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Self

from opentelemetry import trace as api
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode

from shared import telemetry
from shared.errors import ClientGoneError, HttpError
from shared.settings import TelemetrySettings

if TYPE_CHECKING:
    from shared.otlp import SpanPipe

HEADER: Final = "traceparent"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SCOPE = InstrumentationScope("evenflow")
_UNSET = Status(StatusCode.UNSET)
_SAMPLED = api.TraceFlags(api.TraceFlags.SAMPLED)
_NOT_SAMPLED = api.TraceFlags(api.TraceFlags.DEFAULT)
_ids = RandomIdGenerator()
MOST_EVENTS: Final = 32
"""Events of one span; later ones are left out."""

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


class _Recorder(NamedTuple):
    """What the spans of one process share."""

    processor: SpanProcessor
    resource: Resource


class _Recorded(Trace, ReadableSpan):
    """A span that is written down, and handed to the processor as it is once it has ended.

    The SDK's own span guards everything by locks, copies and limits, for users that it does not know, and costs six
    times as much. Here one task at a time holds a span, and all that is put in is our own.
    """

    recording = True
    _attributes: dict[str, Value]
    _events: list[Event]
    _context: api.SpanContext

    def __init__(
        self, recorder: _Recorder, name: str, kind: Kind, context: api.SpanContext, parent: api.SpanContext | None
    ) -> None:
        self._recorder = recorder
        self._carried = None
        ReadableSpan.__init__(
            self,
            name,
            context,
            parent,
            recorder.resource,
            {},
            [],
            kind=_KINDS[kind],
            status=_UNSET,
            start_time=time.time_ns(),
            instrumentation_scope=_SCOPE,
        )

    @property
    def traceparent(self) -> str:
        if self._carried is None:
            self._carried = _written(self._context)
        return self._carried

    @property
    def trace_id(self) -> str:
        return f"{self._context.trace_id:032x}"

    def step(self, name: str, kind: Kind = "internal") -> Trace:
        above = self._context
        context = api.SpanContext(
            above.trace_id, _ids.generate_span_id(), is_remote=False, trace_flags=above.trace_flags
        )
        return _Recorded(self._recorder, name, kind, context, above)

    def describe(self, attributes: Attributes) -> None:
        self._attributes.update(attributes)

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        if len(self._events) < MOST_EVENTS:
            self._events.append(Event(name, attributes))

    def failed(self, error: BaseException) -> None:
        match error:
            case ClientGoneError() | asyncio.CancelledError():
                self._attributes[telemetry.ERROR_TYPE] = "cancelled"
            case HttpError() if error.status < HttpError.status:
                self._attributes[telemetry.ERROR_TYPE] = error.code or "error"
            case HttpError():
                self.fault(error.code or "error")
            case _:
                self.fault(type(error).__name__)

    def fault(self, code: str) -> None:
        self._attributes[telemetry.ERROR_TYPE] = code
        self._status = Status(StatusCode.ERROR, code)

    def end(self) -> None:
        self._end_time = time.time_ns()
        self._recorder.processor.on_end(self)


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
        self._recorder: _Recorder | None = None
        self._sampler = TraceIdRatioBased(sample_ratio)
        if processor is not None:
            resource = Resource.create({"service.name": service, "service.instance.id": instance})
            self._recorder = _Recorder(processor, resource)

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
        if self._recorder is None:
            return NO_TRACE if parent is None else Trace(traceparent)
        trace_id = _ids.generate_trace_id() if parent is None else parent.trace_id
        if parent is None:
            sampled = self._sampler.should_sample(None, trace_id, name).decision is Decision.RECORD_AND_SAMPLE
        else:
            sampled = parent.trace_flags.sampled
        flags = _SAMPLED if sampled else _NOT_SAMPLED
        context = api.SpanContext(trace_id, _ids.generate_span_id(), is_remote=False, trace_flags=flags)
        return _Recorded(self._recorder, name, kind, context, parent) if sampled else Trace(_written(context))


def parse(traceparent: str) -> api.SpanContext | None:
    """The span that a `traceparent` header names (https://www.w3.org/TR/trace-context/#traceparent-header), or None."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == "ff" or (version == "00" and more) or not trace_id or not span_id:
        return None
    sampled = _SAMPLED if int(flags, 16) & _SAMPLED else _NOT_SAMPLED
    return api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=sampled)


def _written(span: api.SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
