"""The spans of one job in a worker: `worker`, and below it `queue`, `prefill` and `decode`, one after the other."""

import structlog

from shared import telemetry
from shared.tracing import Trace, Tracing
from shared.wire import FinishReason, Job, Usage
from workers.engines.base import Capabilities

_LONGEST = 64  # the reason comes over the bus


class JobSpans:
    """Told what happens to the job, in order; without a receiver for traces each call does nothing."""

    __slots__ = ("_part", "_worker")

    def __init__(self, tracing: Tracing, traceparent: str | None, job: Job, wid: str) -> None:
        self._worker: Trace = tracing.open(telemetry.SPAN_WORKER, traceparent, "consumer")
        self._part: Trace = self._worker.step(telemetry.SPAN_QUEUE)
        if not self._worker.recording:
            return
        self._worker.describe(
            {
                telemetry.OPERATION: "chat" if job.kind == "chat" else "text_completion",
                telemetry.PROVIDER: telemetry.PROVIDER_NAME,
                telemetry.RESPONSE_MODEL: job.model,
                telemetry.MODEL_VERSION: job.version,
                telemetry.TENANT_ID: job.tenant,
                telemetry.WORKER_NAME: wid,
            }
        )
        if job.resume is not None:
            self._worker.event(telemetry.EVENT_RESUMED, {telemetry.RESUMED_TOKENS: len(job.resume.ids)})

    def bind_log(self) -> None:
        """Log lines of the task that calls this name the trace, if there is one."""
        if self._worker.trace_id is not None:
            structlog.contextvars.bind_contextvars(trace_id=self._worker.trace_id)

    def prefilling(self, loaded: Capabilities | None) -> None:
        """The job has its slot."""
        self._next(telemetry.SPAN_PREFILL)
        if self._worker.recording and loaded is not None:
            self._worker.describe(
                {
                    telemetry.DEVICE_KIND: loaded.device,
                    telemetry.DEVICE_RUNTIME: loaded.runtime,
                    telemetry.DEVICE_KERNEL: loaded.kernel,
                }
            )

    def first_token(self) -> None:
        """The prompt is done, and the first token is there."""
        self._next(telemetry.SPAN_DECODE)
        self._part.event(telemetry.EVENT_FIRST_TOKEN)

    def finished(self, reason: FinishReason, usage: Usage, cancelled_for: str) -> None:
        """The engine ended it well, or as it was told to, which `cancelled_for` gives the reason of."""
        if reason == "cancelled":
            self.cancelled(cancelled_for)
        if self._worker.recording:
            self._worker.describe({**_used(usage), telemetry.FINISH_REASONS: (reason,)})

    def failed(self, code: str, usage: Usage) -> None:
        """The engine gave it up."""
        self.fault(code)
        if self._worker.recording:
            self._worker.describe(_used(usage))

    def refused(self, code: str) -> None:
        """This worker does not take the job: no fault of anybody's."""
        self._worker.describe({telemetry.REFUSAL: code})

    def cancelled(self, why: str) -> None:
        """It was stopped on the way."""
        for span in (self._part, self._worker):
            span.describe({telemetry.CANCELLED_FOR: why[:_LONGEST] or "unknown"})

    def fault(self, code: str) -> None:
        """It went wrong, in the part that is open now."""
        self._part.fault(code)
        self._worker.fault(code)

    def end(self) -> None:
        """The job is over."""
        self._part.end()
        self._worker.end()

    def _next(self, name: str) -> None:
        self._part.end()
        self._part = self._worker.step(name)


def _used(usage: Usage) -> dict[str, int | float]:
    return {
        telemetry.INPUT_TOKENS: usage.prompt,
        telemetry.CACHED_TOKENS: usage.cached,
        telemetry.OUTPUT_TOKENS: usage.completion,
        telemetry.DRAFT_ACCEPTED: usage.accepted,
        telemetry.DRAFT_PROPOSED: usage.proposed,
        telemetry.DEVICE_SECONDS: usage.device_seconds,
    }
