"""Our bytes against the SDK's own encoder: the same messages, whatever a span holds."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, Status, StatusCode

from shared.otlp_spans import encode

SCOPE = InstrumentationScope("evenflow")
RESOURCES = [Resource.create({"service.name": name, "service.instance.id": f"{name}-1"}) for name in ("gw", "worker")]

nanoseconds = st.integers(0, 2**64 - 1)
text = st.text(max_size=300)
values = (
    text
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False).map(lambda value: value + 0.0)  # minus zero goes out as zero
    | st.lists(st.text(max_size=9), max_size=3).map(tuple)
)
# Values that are equal, and yet not the same: what is remembered of the one must not be sent for the other.
twins = st.sampled_from([0, 0.0, False, 1, 1.0, True, "", "1", ("1",), ()])
attributes = st.dictionaries(
    st.sampled_from(["a", "evenflow.b"]) | st.text(min_size=1, max_size=9), values | twins, max_size=5
)
contexts = st.builds(
    api.SpanContext,
    trace_id=st.integers(1, 2**128 - 1),
    span_id=st.integers(1, 2**64 - 1),
    is_remote=st.booleans(),
    trace_flags=st.just(api.TraceFlags(1)),
)
statuses = st.sampled_from([Status(StatusCode.UNSET), Status(StatusCode.OK)]) | st.builds(
    Status, st.just(StatusCode.ERROR), st.none() | text
)
spans = st.builds(
    ReadableSpan,
    name=st.sampled_from(["gateway", "queue", "größer"]),
    context=contexts,
    parent=st.none() | contexts,
    resource=st.sampled_from(RESOURCES),
    attributes=attributes,
    events=st.lists(st.builds(Event, st.sampled_from(["first_token", "x" * 200]), attributes, nanoseconds), max_size=3),
    kind=st.sampled_from(SpanKind),
    status=statuses,
    start_time=nanoseconds,
    end_time=nanoseconds,
    instrumentation_scope=st.just(SCOPE),
)


def flat(request):
    """Every span with the process it is of, in order."""
    return [
        (resource.resource, scope.scope, span)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(spans, min_size=1, max_size=4))
def test_the_messages_are_those_of_the_sdks_encoder(batch):
    ours = flat(ExportTraceServiceRequest.FromString(encode(batch)))
    theirs = [flat(encode_spans([span]))[0] for span in batch]
    assert ours == theirs


@pytest.mark.parametrize("count", [1, 500])
def test_spans_of_one_process_share_its_description(count):
    context = api.SpanContext(1, 2, is_remote=False)
    span = ReadableSpan("x", context, resource=RESOURCES[0], start_time=1, end_time=2, instrumentation_scope=SCOPE)
    (process,) = ExportTraceServiceRequest.FromString(encode([span] * count)).resource_spans
    (scope,) = process.scope_spans
    assert len(scope.spans) == count


def test_no_text_loses_a_batch():
    context = api.SpanContext(1, 2, is_remote=False)
    span = ReadableSpan(
        "x", context, resource=RESOURCES[0], attributes={"a": "half \ud83d", "n": 2**64 - 1}, start_time=1, end_time=2,
        instrumentation_scope=SCOPE,
    )  # fmt: skip
    ((_, _, read),) = flat(ExportTraceServiceRequest.FromString(encode([span])))
    assert [pair.value.string_value for pair in read.attributes] == ["half ?", ""]


def test_nothing_is_nothing():
    assert encode([]) == b""
