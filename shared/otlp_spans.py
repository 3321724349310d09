"""Spans as the protobuf that OTLP wants, written directly.

The SDK's encoder makes a protobuf object of every span, attribute and value before it writes a byte, which costs more
than all else that a span goes through. Ours have seven shapes, and most of their bytes were written before: names,
kinds, and attributes that are the same for thousands of requests come out of a cache. The messages are the same, field
by field. The numbers are those of `opentelemetry/proto/trace/v1/trace.proto` and `common/v1/common.proto` in
https://github.com/open-telemetry/opentelemetry-proto.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

_CACHED: Final = 4096
"""Attributes that are remembered, some 200 bytes each. What belongs to one request alone only pushes the oldest out."""
_UINT64: Final = (1 << 64) - 1
_KINDS: Final = {
    SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3, SpanKind.PRODUCER: 4, SpanKind.CONSUMER: 5,
}  # fmt: skip
_FLAGS: Final = b"\x85\x01\x00\x01\x00\x00"
_FLAGS_REMOTE: Final = b"\x85\x01\x00\x03\x00\x00"
_UNSET: Final = b"z\x00"
_process = attrgetter("resource", "instrumentation_scope")
_times = struct.Struct("<cQcQ").pack
_time = struct.Struct("<cQ").pack
_double = struct.Struct("<cd").pack


def encode(spans: Sequence[ReadableSpan]) -> bytes:
    """An `ExportTraceServiceRequest` with these spans, as it goes over the wire.

    They have ended, have no links, and their attributes are of the types that `shared.tracing.Value` allows.
    """
    return b"".join(
        _resource_spans(*process, b"".join(map(_span, group))) for process, group in groupby(spans, _process)
    )


def _resource_spans(resource: Resource, scope: InstrumentationScope, spans: bytes) -> bytes:
    """`resource_spans` = 1, with `resource` = 1, `scope_spans` = 2, in there `scope` = 1 and `spans` = 2."""
    origin = b"".join(_attribute(b"\n", key, value) for key, value in resource.attributes.items())
    inner = _field(b"\n", _field(b"\n", scope.name.encode())) + spans
    return _field(b"\n", _field(b"\n", origin) + _field(b"\x12", inner))


def _span(span: ReadableSpan) -> bytes:
    """`spans` = 2, with `trace_id` = 1, `span_id` = 2, `start_time_unix_nano` = 7, `end_time_unix_nano` = 8."""
    context, status = span.context, span.status
    return _field(
        b"\x12",
        b"".join(
            [
                b"\n\x10", context.trace_id.to_bytes(16, "big"),
                b"\x12\x08", context.span_id.to_bytes(8, "big"),
                _parent(span.parent),
                _named(span.name, span.kind),
                _times(b"9", span.start_time, b"A", span.end_time),
                *[_attribute(b"J", key, value) for key, value in (span.attributes or {}).items()],  # attributes = 9
                *map(_event, span.events),
                _UNSET if status.is_unset else _status(status.status_code, status.description),
            ]
        ),
    )  # fmt: skip


def _parent(parent: SpanContext | None) -> bytes:
    """`parent_span_id` = 4 and `flags` = 16, which say that it is known whether the parent is of another process."""
    if parent is None:
        return _FLAGS
    return b'"\x08' + parent.span_id.to_bytes(8, "big") + (_FLAGS_REMOTE if parent.is_remote else _FLAGS)


def _event(event: Event) -> bytes:
    """`events` = 11, with `time_unix_nano` = 1, `name` = 2, `attributes` = 3."""
    attributes = b"".join([_attribute(b"\x1a", key, value) for key, value in (event.attributes or {}).items()])
    return _field(b"Z", _time(b"\t", event.timestamp) + _field(b"\x12", event.name.encode()) + attributes)


@lru_cache(64)
def _named(name: str, kind: SpanKind) -> bytes:
    """`name` = 5, `kind` = 6."""
    return _field(b"*", name.encode()) + b"0" + _varint(_KINDS[kind])


@lru_cache(64)
def _status(code: StatusCode, message: str | None) -> bytes:
    """`status` = 15, with `message` = 2, `code` = 3."""
    said = _field(b"\x12", _text(message)) if message else b""
    return _field(b"z", said + b"\x18" + _varint(code.value))


@lru_cache(_CACHED, typed=True)  # 1, 1.0 and True are three values
def _attribute(tag: bytes, key: str, value: Any) -> bytes:
    """A `KeyValue` as the field `tag`: `key` = 1, `value` = 2."""
    return _field(tag, _field(b"\n", key.encode()) + _field(b"\x12", _value(value)))


def _value(value: Any) -> bytes:
    """An `AnyValue`: `string_value` = 1, `bool_value` = 2, `int_value` = 3, `double_value` = 4, `array_value` = 5."""
    if isinstance(value, str):
        return _field(b"\n", _text(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & _UINT64)
    if isinstance(value, float):
        return _double(b"!", value + 0.0)  # -0.0 would be remembered as the 0.0 that it equals
    return _field(b"*", b"".join(_field(b"\n", _value(one)) for one in value))


def _text(text: str) -> bytes:
    return text.encode(errors="replace")  # half of a surrogate pair is no reason to lose a batch


def _field(tag: bytes, content: bytes) -> bytes:
    """A field of a length that stands before it."""
    size = len(content)
    if size < 1 << 7:
        return b"%b%c%b" % (tag, size, content)
    if size < 1 << 14:
        return b"%b%c%c%b" % (tag, size & 0x7F | 0x80, size >> 7, content)
    return tag + _varint(size) + content


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last byte have their highest bit set."""
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
