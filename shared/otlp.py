"""Spans on their way to a receiver, over OTLP/HTTP, in a thread of their own.

Requests never wait for it: what finds the queue full is dropped and counted, and so is what the receiver did not take
in time. A receiver that is down, slow, or answers nonsense costs traces, nothing else.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

import requests
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from shared.otlp_spans import encode

log = structlog.get_logger("traces")

QUEUE: Final = 4096
"""Spans that wait at most, some 2 KiB each."""
BATCH: Final = 1024
"""Spans that are sent at once, some 300 KB: a request costs the same CPU however many they are, and receivers refuse
bodies of 1 MB."""
SEND_S: Final = 5.0
"""How long one batch may take, repeats included."""
CLOSE_S: Final = 1.0
"""How long the last spans may take when the process ends."""
ANSWER_BYTES: Final = 64 * 1024
"""A longer answer is not read: nobody looks at it."""


class SpanPipe(BatchSpanProcessor):
    """OpenTelemetry's batching processor with counts, and an end that cannot take long."""

    def __init__(self, exporter: SpanExporter, *, queue: int = QUEUE, every_s: float | None = None) -> None:
        self._limit = queue
        self._taken = 0
        self._refused = 0
        self._counted = _Counted(exporter)
        super().__init__(
            self._counted,
            max_queue_size=queue,
            # OpenTelemetry's own default is 5 s. Sending costs some 2 ms of CPU, however few the spans.
            schedule_delay_millis=None if every_s is None else every_s * 1000,
            max_export_batch_size=min(BATCH, queue),
        )

    @property
    def exported(self) -> int:
        """Spans that the receiver has taken."""
        return self._counted.exported

    @property
    def dropped(self) -> dict[str, int]:
        """Spans that were lost, by the reason: the queue was full, or the receiver did not take them."""
        return {"queue_full": self._refused, "not_taken": self._counted.lost}

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that has ended; never waits."""
        # Taken and handed on are each written by one thread alone, so that their difference needs no lock.
        if self._taken - self._counted.handed_on >= self._limit:
            self._refused += 1
            return
        self._taken += 1
        super().on_end(span)

    def close(self) -> None:
        """Send what still waits, at most `CLOSE_S` seconds long. Blocks; the rest is lost and counted in the log."""
        # The processor's own shutdown waits up to 30 s for its thread, and cannot be told otherwise.
        ending = threading.Thread(target=self.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        left = self._taken - self.exported - self._counted.lost
        if left or self._refused or self._counted.lost:
            log.warning("spans_lost", unsent=left, **self.dropped)


class _Counted(SpanExporter):
    """An exporter with books. All of it runs in the processor's thread."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self._failing = False
        self.handed_on = 0
        self.exported = 0
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hand `spans` on; says once when that begins to fail, and once when it works again."""
        self.handed_on += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            self._count(len(spans), failed=result is not SpanExportResult.SUCCESS)
        return result

    def _count(self, spans: int, *, failed: bool) -> None:
        if failed:
            self.lost += spans
        else:
            self.exported += spans
        if failed != self._failing:
            self._failing = failed
            if failed:
                log.warning("traces_not_taken", spans=spans)
            else:
                log.info("traces_taken_again", lost=self.lost)

    def shutdown(self) -> None:
        """No more spans."""
        self._inner.shutdown()


class _Session(requests.Session):
    """An answer without an end must not be read to its end."""

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Send a request, read a short answer whole and of a long one its head."""
        response = super().request(*args, **(options | {"stream": True}))
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) <= ANSWER_BYTES:
            _ = response.content  # read, so that the connection can be used again
        else:
            response.close()
        return response


class _Exporter(OTLPSpanExporter):
    """The SDK's exporter, with its headers, certificates, compression and repeats, and with our own encoder."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send `spans`. Blocks until they are taken, refused, or `SEND_S` is over."""
        if self._shutdown or not hasattr(self, "_client"):  # what sends is no public name: another version may lack it
            return super().export(spans)
        return SpanExportResult.SUCCESS if self._client.export(encode(spans)).success else SpanExportResult.FAILURE


def span_pipe(endpoint: str) -> SpanPipe:
    """A pipe to the receiver at `endpoint`, OTLP's base address such as `http://host:4318`."""
    # Its words for a receiver that is down come with every batch; ours come once.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
    url = f"{endpoint.rstrip('/')}/v1/traces"
    return SpanPipe(_Exporter(url, timeout=SEND_S, session=_Session()))
