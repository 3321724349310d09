"""One request, one trace: which spans there are, whose children, what they say, and what they never do."""

import asyncio
from pathlib import Path

import pytest
import structlog
from opentelemetry.trace import SpanKind, StatusCode

from shared import telemetry, tracing
from shared.tracing import NO_TRACE, Tracing
from tests.traces.inside import KEY, SECRET, Gated, inside
from workers.engines.base import Delta, Failed, Started
from workers.engines.null import NullEngine

ROOT = Path(__file__).parents[2]
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
NAMED = {value for value in vars(telemetry).values() if isinstance(value, str)}
PARENTS = {
    "queue": {"gateway", "worker"},
    "dispatch": {"gateway"},
    "relay": {"gateway"},
    "worker": {"dispatch"},
    "prefill": {"worker"},
    "decode": {"worker"},
}


class Broken(NullEngine):
    """Fails after its first token, with words that nobody outside may read."""

    async def submit(self, request):
        yield Started()
        yield Delta("x", (1,))
        yield Failed("engine_fault", retryable=True, message=SECRET)


class Raising(NullEngine):
    """Breaks the seam: raises what no engine may."""

    async def submit(self, request):
        yield Started()
        raise RuntimeError(SECRET)


@pytest.fixture(autouse=True)
def _no_leftovers():
    yield
    structlog.contextvars.clear_contextvars()


def connected(spans):
    """Every span but the roots hangs on one of its own trace, by the right name. Returns the roots."""
    every = [span for group in spans.values() for span in group]
    assert {name for span in every for name in span.attributes} <= NAMED
    by_id = {span.context.span_id: span for span in every}
    assert len({span.context.trace_id for span in every}) == 1
    roots = []
    for span in every:
        parent = None if span.parent is None else by_id.get(span.parent.span_id)
        if parent is None:
            roots.append(span)
        else:
            assert parent.name in PARENTS[span.name], f"{span.name} below {parent.name}"
    return roots


def secretive(spans, *more):
    """Nothing of a prompt, an answer, a key or an error's words in anything that leaves."""
    text = "".join(span.to_json() for group in spans.values() for span in group)
    for secret in (SECRET, KEY, KEY[3:20], *more):
        assert secret not in text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_one_connected_trace_below_its_clients_span(stream):
    async with inside(NullEngine()) as stack:
        status, answer = await stack.ask(traceparent=SAMPLED, stream=stream)
        assert status == 200
        spans = stack.spans()
    assert {name: len(found) for name, found in spans.items()} == {
        "gateway": 1, "queue": 2, "dispatch": 1, "relay": 1, "worker": 1, "prefill": 1, "decode": 1,
    }  # fmt: skip
    (root,) = connected(spans)
    assert root.name == "gateway"
    assert f"{root.context.trace_id:032x}" == TRACE_ID
    assert f"{root.parent.span_id:016x}" == SPAN_ID
    assert root.kind is SpanKind.SERVER
    assert dict(root.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "evenflow",
        "gen_ai.request.model": "null",
        "gen_ai.response.model": "null",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": len(f"<|turn|>user: {SECRET}\n<|turn|>assistant: ") - 2 * len("<|turn|>") + 2,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "evenflow.draft.accepted": 0,
        "evenflow.draft.proposed": 0,
        "evenflow.model.version": "1",
        "evenflow.outcome": "ok",
        "evenflow.request.id": "req-1",
        "evenflow.stream": stream,
        "evenflow.tenant.id": "t1",
    }
    (worker,) = spans["worker"]
    assert worker.kind is SpanKind.CONSUMER
    assert worker.attributes["gen_ai.usage.output_tokens"] == 5
    assert worker.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert worker.attributes["evenflow.worker.name"] == "w1"
    assert {"evenflow.device.kind", "evenflow.device.runtime", "evenflow.device.kernel"} <= set(worker.attributes)
    for name in ("relay", "decode"):
        assert [event.name for event in spans[name][0].events] == ["first_token"]
    assert all(span.status.status_code is StatusCode.UNSET for group in spans.values() for span in group)
    assert all(span.end_time >= span.start_time for group in spans.values() for span in group)
    secretive(spans, "The quick")
    assert b"The q" in answer if not stream else True


async def test_every_choice_has_its_own_branch():
    async with inside(NullEngine()) as stack:
        await stack.ask(n=3)
        spans = stack.spans()
    (root,) = connected(spans)
    assert root.parent is None
    assert {name: len(found) for name, found in spans.items()} == {
        "gateway": 1, "queue": 6, "dispatch": 3, "relay": 1, "worker": 3, "prefill": 3, "decode": 3,
    }  # fmt: skip
    assert sorted(span.attributes["evenflow.attempt.choice"] for span in spans["dispatch"]) == [0, 1, 2]
    assert root.attributes["gen_ai.usage.output_tokens"] == 15


@pytest.mark.parametrize(
    "header",
    [
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{TRACE_ID[:-1]}-{SPAN_ID}-01",
        f" {SAMPLED}",
        SECRET,
    ],
)
async def test_a_header_that_is_none_begins_a_trace_of_our_own(header):
    async with inside(NullEngine()) as stack:
        assert (await stack.ask(traceparent=header))[0] == 200
        spans = stack.spans()
    (root,) = connected(spans)
    assert root.parent is None
    secretive(spans)


async def test_a_later_version_of_the_header_is_read_as_far_as_it_is_known():
    assert tracing.parse(f"42-{TRACE_ID}-{SPAN_ID}-01-whatever").span_id == int(SPAN_ID, 16)


@pytest.mark.parametrize(("ratio", "header"), [(1.0, f"00-{TRACE_ID}-{SPAN_ID}-00"), (0.0, None)])
async def test_what_is_not_sampled_leaves_no_spans_and_the_worker_is_told(ratio, header):
    async with inside(NullEngine(), sample_ratio=ratio) as stack:
        assert (await stack.ask(traceparent=header))[0] == 200
        assert stack.spans() == {}
        (carried,) = [headers["traceparent"] for subject, headers in stack.hub.passed if ".job." in subject]
    assert int(carried[-2:], 16) & 1 == 0
    assert header is None or TRACE_ID in carried


async def test_the_clients_word_goes_before_the_ratio():
    async with inside(NullEngine(), sample_ratio=0.0) as stack:
        await stack.ask(traceparent=SAMPLED)
        assert len(connected(stack.spans())) == 1


async def test_without_a_receiver_no_span_is_made_and_the_header_still_reaches_the_worker(monkeypatch):
    def never(*_arguments, **_options):
        raise AssertionError("a span was made")

    monkeypatch.setattr(tracing, "_Recorded", never)
    monkeypatch.setattr(tracing, "ReadableSpan", never)
    assert Tracing().open("gateway", None) is NO_TRACE
    assert NO_TRACE.step("queue") is NO_TRACE
    async with inside(NullEngine(), traced=False) as stack:
        assert (await stack.ask(traceparent=SAMPLED))[0] == 200
        assert (await stack.ask())[0] == 200
        jobs = [headers for subject, headers in stack.hub.passed if ".job." in subject]
    assert jobs == [{"traceparent": SAMPLED}, None]


async def test_a_refused_key_is_the_clients_mistake_and_no_fault():
    async with inside(NullEngine()) as stack:
        assert (await stack.ask(key=SECRET))[0] == 401
        spans = stack.spans()
    (root,) = connected(spans)
    assert set(spans) == {"gateway"}
    assert root.status.status_code is StatusCode.UNSET
    assert root.attributes["error.type"] == root.attributes["evenflow.outcome"] == "invalid_api_key"
    assert root.attributes["http.response.status_code"] == 401
    secretive(spans)


async def test_names_of_models_that_do_not_exist_are_the_clients_text():
    async with inside(NullEngine()) as stack:
        assert (await stack.ask(model=SECRET))[0] == 404
        spans = stack.spans()
    assert connected(spans)[0].attributes["error.type"] == "model_not_found"
    secretive(spans)


async def test_a_worker_that_refuses_for_good_says_why():
    async with inside(NullEngine()) as stack:
        assert (await stack.ask(messages=[{"role": "user", "content": "x" * 5000}]))[0] == 400
        spans = stack.spans()
    (root,) = connected(spans)
    (dispatch,), (worker,) = spans["dispatch"], spans["worker"]
    assert dispatch.attributes["evenflow.refusal"] == worker.attributes["evenflow.refusal"] == "too_large"
    assert root.attributes["error.type"] == "context_length_exceeded"
    assert root.status.status_code is StatusCode.UNSET
    assert "decode" not in spans


async def test_another_try_is_an_event_and_a_dispatch_of_its_own(monkeypatch):
    async with inside(NullEngine()) as stack:
        (node,) = stack.nodes
        admit, refusals = node.slots.admit, iter([None])
        monkeypatch.setattr(node.slots, "admit", lambda key: None if next(refusals, False) is None else admit(key))
        assert (await stack.ask())[0] == 200
        spans = stack.spans()
    (root,) = connected(spans)
    (event,) = root.events
    assert (event.name, dict(event.attributes)) == (
        "retried", {"evenflow.worker.name": "w1", "evenflow.refusal": "busy"},
    )  # fmt: skip
    first, second = spans["dispatch"]
    assert [s.attributes["evenflow.attempt.number"] for s in (first, second)] == [0, 1]
    assert first.attributes["evenflow.refusal"] == "busy"
    assert "evenflow.refusal" not in second.attributes


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_no_fault_and_the_worker_is_told_why(stream):
    engine, gone = Gated(), asyncio.Event()
    async with inside(engine) as stack:
        asking = asyncio.create_task(stack.ask(stream=stream, leave=gone, traceparent=SAMPLED))
        while not any(attempt.received for attempt in stack.house.streams._attempts.values()):
            await asyncio.sleep(0)
        gone.set()
        await asking
        spans = stack.spans()
    (root,) = connected(spans)
    assert root.attributes["evenflow.outcome"] == "client_left"
    assert root.attributes["error.type"] == "cancelled"
    (worker,), (decode,) = spans["worker"], spans["decode"]
    assert worker.attributes["evenflow.cancelled_for"] == decode.attributes["evenflow.cancelled_for"] == "client_left"
    assert worker.attributes["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert root.attributes["gen_ai.usage.output_tokens"] == 1, "what had come"
    assert all(span.status.status_code is StatusCode.UNSET for group in spans.values() for span in group)


@pytest.mark.parametrize(("engine", "code"), [(Broken, "engine_fault"), (Raising, "internal")])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_worker_that_fails_is_an_error_of_every_span_it_broke(engine, code, stream):
    async with inside(engine()) as stack:
        status, _ = await stack.ask(stream=stream)
        spans = stack.spans()
    (root,) = connected(spans)
    broken = {name for name, group in spans.items() for span in group if not span.status.is_ok}
    assert broken == {"gateway", "relay", "worker", "decode" if engine is Broken else "prefill"}
    assert spans["worker"][0].attributes["error.type"] == code
    assert root.attributes["http.response.status_code"] == status == (200 if stream else 502)
    assert root.attributes["error.type"] == root.attributes["evenflow.outcome"]
    secretive(spans)


async def test_log_lines_of_a_request_name_its_trace():
    merged = [structlog.contextvars.merge_contextvars]
    async with inside(NullEngine()) as stack:
        with structlog.testing.capture_logs(processors=merged) as lines:
            await stack.ask(traceparent=SAMPLED)
            await stack.ask()
        ids = [f"{span.context.trace_id:032x}" for span in stack.spans()["gateway"]]
    assert [line.get("trace_id") for line in lines if line["event"] == "request"] == ids
    assert ids[0] == TRACE_ID != ids[1]


async def test_where_there_is_no_trace_log_lines_name_none():
    async with inside(NullEngine(), traced=False) as stack:
        with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            await stack.ask()
    assert [("trace_id" in line) for line in lines if line["event"] == "request"] == [False]


def test_names_stand_in_one_place():
    every = [path for room in ("gateway", "shared", "workers") for path in (ROOT / room).rglob("*.py")]
    assert len(every) > 80
    assert [path.name for path in every if '"gen_ai.' in path.read_text()] == ["telemetry.py"]
