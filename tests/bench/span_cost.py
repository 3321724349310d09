"""What one request's spans cost: CPU of making, encoding and handing them on, with our encoder and with the SDK's.

    .venv/bin/python -m tests.bench.span_cost

Nothing is sent, and no server is needed. Rounds of requests go through both encoders in turn; the tenth percentile of
the rounds is told, which a busy machine moves little.
"""

import time

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from shared import otlp, telemetry
from shared.otlp import SpanPipe
from shared.tracing import Tracing
from shared.wire import Job, Usage
from workers.engines.base import Capabilities
from workers.spans import JobSpans

ROUNDS, REQUESTS = 60, 100
ENCODERS = {"ours": otlp._Exporter, "the SDK's": OTLPSpanExporter}
JOB = Job(gep="e", sid=5, aid="r.0.0", tenant="t", model="m", version="1", kind="chat", input="x", deadline_ms=9)
LOADED = Capabilities(
    model="m", version="1", digest="", vocab_hash="", vocab_size=1, slots=1, context=1, max_output=1, features=(),
    device="cpu", runtime="runtime 1", kernel="avx2", chat_template="", bos="", eos="", control_tokens=(),
)  # fmt: skip


class Nowhere(requests.Session):
    """Takes everything, sends nothing."""

    def request(self, *args, **options):
        taken = requests.Response()
        taken.status_code, taken._content = 200, b""
        return taken


def gateway(tracing: Tracing, number: int) -> None:
    """What the steps of one good request say, see `gateway.steps`."""
    with tracing.open(telemetry.SPAN_GATEWAY, None) as root:
        with root.step(telemetry.SPAN_QUEUE):
            pass
        with root.step(telemetry.SPAN_DISPATCH, "producer") as dispatch:
            dispatch.describe({telemetry.WORKER_NAME: "w1", telemetry.ATTEMPT_CHOICE: 0, telemetry.ATTEMPT_NUMBER: 0})
            dispatch.headers()
        with root.step(telemetry.SPAN_RELAY) as relay:
            relay.event(telemetry.EVENT_FIRST_TOKEN)
        words = (
            telemetry.OPERATION, telemetry.PROVIDER, telemetry.SPAN_OUTCOME, telemetry.TENANT_ID, telemetry.MODEL,
            telemetry.RESPONSE_MODEL, telemetry.MODEL_VERSION, telemetry.HTTP_METHOD, telemetry.HTTP_ROUTE,
        )  # fmt: skip
        counts = (
            telemetry.CHOICES, telemetry.MAX_TOKENS, telemetry.INPUT_TOKENS, telemetry.CACHED_TOKENS,
            telemetry.OUTPUT_TOKENS, telemetry.DRAFT_ACCEPTED, telemetry.DRAFT_PROPOSED, telemetry.HTTP_STATUS,
        )  # fmt: skip
        root.describe(
            dict.fromkeys(words, "some words")
            | dict.fromkeys(counts, number % 50)
            | {telemetry.STREAMED: True, telemetry.FINISH_REASONS: ("stop",), telemetry.REQUEST_ID: f"{number:032x}"}
        )


def worker(tracing: Tracing, number: int) -> None:
    """What a worker says of one good job."""
    spans = JobSpans(tracing, f"00-{number + 1:032x}-{number + 1:016x}-01", JOB, "w1")
    spans.prefilling(LOADED)
    spans.first_token()
    spans.finished("stop", Usage(prompt=number % 50, completion=100, device_seconds=number / 1000), "")
    spans.end()


def main() -> None:
    pipes = {
        name: SpanPipe(exporter("http://127.0.0.1:9/v1/traces", session=Nowhere()), every_s=3600)
        for name, exporter in ENCODERS.items()
    }
    for process in (gateway, worker):
        costs: dict[str, list[float]] = {name: [] for name in pipes}
        for round_ in range(ROUNDS):
            for name, pipe in pipes.items():
                tracing = Tracing("bench", "b1", processor=pipe)
                before = time.process_time()
                for request in range(REQUESTS):
                    process(tracing, round_ * REQUESTS + request)
                pipe.force_flush()
                costs[name].append((time.process_time() - before) / REQUESTS * 1e6)
        told = ", ".join(f"{sorted(found)[ROUNDS // 10]:.0f} us with {name}" for name, found in costs.items())
        print(f"{process.__name__:8} {told}")
    for pipe in pipes.values():
        pipe.close()


if __name__ == "__main__":
    main()
