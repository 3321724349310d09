"""Step 8: give everything back, count it, and leave one line in the log."""

import asyncio

import structlog

from gateway.context import Arrival, House, Passage
from gateway.encode import merge
from shared import telemetry
from shared.tracing import Attributes
from shared.wire import End, Usage

log = structlog.get_logger("request")


def settle(house: House, arrival: Arrival, passage: Passage | None, outcome: str) -> None:
    """The request is over, however it went: stop what still runs for it, free what it held. Waits for nothing.

    What a cancelled attempt used is counted when its worker reports it, see `Streams.ended`, and billed then.
    """
    seconds = asyncio.get_running_loop().time() - arrival.arrived
    house.pulse.finished(passage, outcome)
    if arrival.trace.recording:
        arrival.trace.describe(_attributes(arrival, passage, outcome))
    if passage is None:  # it never got past its key or its body
        house.meters.finished("none", outcome, seconds, None, None)
        log.info("request", request_id=arrival.request_id, outcome=outcome, seconds=round(seconds, 4))
        return
    for attempt in passage.attempts:
        house.streams.cancel(attempt, outcome)
    house.streams.forget(passage.inbox)
    ttft = None if passage.first_token_at is None else passage.first_token_at - arrival.arrived
    model, version = passage.pool
    queued = _queued_s(passage, outcome, arrival.arrived + seconds)
    house.usage.closing(passage.bill, outcome, queued or 0.0)
    house.meters.finished(model or "none", outcome, seconds, ttft, queued)
    log.info(
        "request",
        request_id=arrival.request_id,
        tenant=passage.principal.tenant_name,
        key=passage.principal.key_id,
        model=model,
        version=version,
        outcome=outcome,
        seconds=round(seconds, 4),
        ttft=None if ttft is None else round(ttft, 4),
        queued=None if queued is None else round(queued, 4),
        tokens=sum(attempt.received for attempt in passage.attempts),
        workers=[attempt.wid for attempt in passage.attempts],
    )


def _queued_s(passage: Passage, outcome: str, now: float) -> float | None:
    """How long it stood in the line, be it in vain; `None` for what never stood there."""
    if passage.queued_s is None and passage.queued_from is not None and outcome != "queue_full":
        return now - passage.queued_from
    return passage.queued_s


def _attributes(arrival: Arrival, passage: Passage | None, outcome: str) -> Attributes:
    """What the request's span says of it. Like labels, only models that exist: other names are the client's text."""
    told: dict[str, str | bool | int | tuple[str, ...]] = {
        telemetry.OPERATION: "chat" if arrival.endpoint == "chat" else "text_completion",
        telemetry.PROVIDER: telemetry.PROVIDER_NAME,
        telemetry.SPAN_OUTCOME: outcome,
    }
    if passage is None:
        return told
    ask = passage.ask
    told |= {
        telemetry.TENANT_ID: passage.principal.tenant_id,
        telemetry.STREAMED: ask.stream,
        telemetry.CHOICES: ask.n,
    }
    if ask.max_tokens is not None:
        told[telemetry.MAX_TOKENS] = ask.max_tokens
    model, version = passage.pool
    if model:
        told |= {telemetry.MODEL: ask.model, telemetry.RESPONSE_MODEL: model, telemetry.MODEL_VERSION: version}
    if passage.attempts:
        told |= _used(passage)
    return told


def _used(passage: Passage) -> dict[str, str | bool | int | tuple[str, ...]]:
    ends = [attempt.terminal for attempt in passage.attempts]
    usage = merge(
        [
            # Nothing final from the worker yet: what it said on accepting, and what has come.
            Usage(prompt=attempt.accept.prompt_tokens if attempt.accept else 0, completion=attempt.received)
            if attempt.terminal is None
            else attempt.terminal.usage
            for attempt in passage.attempts
        ]
    )
    return {
        telemetry.INPUT_TOKENS: usage.prompt,
        telemetry.CACHED_TOKENS: usage.cached,
        telemetry.OUTPUT_TOKENS: usage.completion,
        telemetry.DRAFT_ACCEPTED: usage.accepted,
        telemetry.DRAFT_PROPOSED: usage.proposed,
        telemetry.FINISH_REASONS: tuple(end.reason for end in ends if isinstance(end, End)),
    }
