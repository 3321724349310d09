"""Spans on their way out: bounded, counted, and nobody waits for them."""

import threading

import pytest
import structlog
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from gateway.services.meters import Meters
from shared import otlp
from shared.otlp import SpanPipe, span_pipe
from shared.settings import TelemetrySettings
from shared.telemetry import Metrics
from shared.tracing import Tracing
from tests.traces.receiver import receiving


class Stub(SpanExporter):
    """Takes what it gets once `go_on` is set; `result` may be an error."""

    def __init__(self, result=SpanExportResult.SUCCESS):
        self.result, self.took, self.busy, self.go_on = result, [], threading.Event(), threading.Event()

    def export(self, spans):
        self.busy.set()
        self.go_on.wait()
        if isinstance(self.result, Exception):
            raise self.result
        self.took += spans
        return self.result

    def shutdown(self):
        pass


@pytest.fixture(autouse=True)
def logs():
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture
def stub():
    made = Stub()
    yield made
    made.go_on.set()


def make(pipe, count):
    tracing = Tracing("s", "i", processor=pipe)
    for _ in range(count):
        tracing.open("gateway", None).end()


def lost(pipe):
    return sum(pipe.dropped.values())


def test_what_finds_the_queue_full_is_dropped_and_counted_while_the_receiver_hangs(stub):
    pipe = SpanPipe(stub, queue=8, every_s=3600)
    make(pipe, 8)  # a whole batch: it is handed on, and the receiver hangs
    assert stub.busy.wait(30)
    make(pipe, 1000)  # returns: nobody waits
    assert pipe.dropped == {"queue_full": 992, "not_taken": 0}
    stub.go_on.set()
    pipe.close()
    assert len(stub.took) == pipe.exported == 16


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, RuntimeError("broken")])
@pytest.mark.filterwarnings("ignore")
def test_what_the_receiver_does_not_take_is_counted_and_said_once(result, logs):
    stub = Stub(result)
    stub.go_on.set()
    pipe = SpanPipe(stub, queue=4, every_s=3600)
    for _ in range(3):
        make(pipe, 1)
        pipe.force_flush()
    assert pipe.dropped == {"queue_full": 0, "not_taken": 3}
    stub.result = SpanExportResult.SUCCESS
    make(pipe, 2)
    pipe.close()
    assert pipe.exported == 2
    assert [line["event"] for line in logs] == ["traces_not_taken", "traces_taken_again", "spans_lost"]


def test_the_end_does_not_wait_for_a_receiver_that_hangs(stub, monkeypatch, logs):
    monkeypatch.setattr(otlp, "CLOSE_S", 0.01)
    pipe = SpanPipe(stub, queue=8, every_s=3600)
    make(pipe, 5)
    pipe.close()
    assert not stub.go_on.is_set(), "it hangs still"
    assert pipe.exported == 0
    assert logs == [
        {"event": "spans_lost", "log_level": "warning", "unsent": 5, "queue_full": 0, "not_taken": 0}
    ]  # fmt: skip


def test_the_end_sends_what_waits(stub, logs):
    stub.go_on.set()
    pipe = SpanPipe(stub, every_s=3600)
    make(pipe, 600)
    pipe.close()
    assert len(stub.took) == pipe.exported == 600
    assert lost(pipe) == 0
    assert logs == []


def test_counts_are_in_the_scrape(stub):
    pipe = SpanPipe(stub, queue=8, every_s=3600)
    make(pipe, 8)
    assert stub.busy.wait(30)
    make(pipe, 11)
    metrics = Metrics("test")
    Meters(metrics).watch_traces(pipe)
    text = metrics.scrape().decode()
    metrics.close()
    assert 'evenflow_telemetry_dropped_total{reason="queue_full"} 3.0' in text
    assert 'evenflow_telemetry_dropped_total{reason="not_taken"} 0.0' in text
    assert "evenflow_telemetry_exported_total 0.0" in text
    stub.go_on.set()
    pipe.close()


def test_a_real_receiver_gets_the_spans_under_the_processs_name():
    with receiving() as receiver:
        pipe = span_pipe(f"{receiver.url}/")
        with Tracing("evenflow-worker", "w7", processor=pipe).open("worker", None) as trace:
            trace.describe({"evenflow.outcome": "ok"})
            trace_id = trace.trace_id
        pipe.close()
        (span,) = receiver.spans(trace_id)
    assert span["name"] == "worker"
    assert span["attributes"] == {"evenflow.outcome": "ok"}
    assert (span["process"]["service.name"], span["process"]["service.instance.id"]) == ("evenflow-worker", "w7")
    assert pipe.exported == 1


def test_the_sdks_encoder_is_not_what_writes(monkeypatch):
    def never(_spans):
        raise AssertionError("the slow way")

    monkeypatch.setattr(trace_exporter, "encode_spans", never)
    with receiving() as receiver:
        pipe = span_pipe(receiver.url)
        make(pipe, 3)
        pipe.close()
        assert len(receiver.spans()) == pipe.exported == 3


def test_where_another_version_of_the_sdk_sends_by_other_means_it_also_writes(monkeypatch):
    took, exporter = [], otlp._Exporter("http://127.0.0.1:9", timeout=0.1)
    monkeypatch.setattr(OTLPSpanExporter, "export", lambda _self, spans: took.append(spans) or SpanExportResult.SUCCESS)
    del exporter._client
    spans = [object()]
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    assert took == [spans]


@pytest.mark.parametrize("mode", ["refuse", "hang"])
def test_a_bad_receiver_costs_spans_only(mode, monkeypatch):
    monkeypatch.setattr(otlp, "SEND_S", 0.2)
    with receiving() as receiver:
        receiver.mode = mode
        pipe = span_pipe(receiver.url)
        make(pipe, 3)
        pipe.force_flush()
        assert receiver.requests >= 1
        pipe.close()
    assert pipe.dropped == {"queue_full": 0, "not_taken": 3}


def test_nobody_there_costs_spans_only(monkeypatch):
    monkeypatch.setattr(otlp, "SEND_S", 0.2)
    with receiving() as receiver:
        url = receiver.url
    pipe = span_pipe(url)
    make(pipe, 3)
    pipe.close()
    assert lost(pipe) == 3


def test_an_answer_without_an_end_is_not_read():
    with receiving() as receiver:
        receiver.mode = "endless"
        pipe = span_pipe(receiver.url)
        make(pipe, 1)
        pipe.force_flush()
        pipe.close()
        assert receiver.requests == 1
        assert receiver.written < 32 * 1024 * 1024, "the sockets' buffers at most"


async def test_settings_decide_whether_there_is_a_pipe():
    off = Tracing.configured("s", "i", TelemetrySettings())
    assert off.pipe is None
    await off.close()
    with receiving() as receiver:
        on = Tracing.configured("s", "i", TelemetrySettings(otlp_endpoint=receiver.url, sample_ratio=0.0))
        assert on.open("gateway", None).recording is False
        assert on.open("gateway", f"00-{'1' * 32}-{'2' * 16}-01").recording is True
        await on.close()
