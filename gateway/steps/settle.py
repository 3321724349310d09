"""Step 7: give everything back, count it, and leave one line in the log."""

import asyncio

import structlog

from gateway.context import Arrival, House, Passage

log = structlog.get_logger("request")


def settle(house: House, arrival: Arrival, passage: Passage | None, outcome: str) -> None:
    """The request is over, however it went: stop what still runs for it, free what it held. Waits for nothing.

    What a cancelled attempt used is counted when its worker reports it, see `Streams.ended`.
    """
    seconds = asyncio.get_running_loop().time() - arrival.arrived
    if passage is None:  # it never got past its key or its body
        house.meters.finished("none", outcome, seconds, None, 0.0)
        log.info("request", request_id=arrival.request_id, outcome=outcome, seconds=round(seconds, 4))
        return
    for attempt in passage.attempts:
        house.streams.cancel(attempt, outcome)
    house.streams.forget(passage.inbox)
    ttft = None if passage.first_token_at is None else passage.first_token_at - arrival.arrived
    model, version = passage.pool
    house.meters.finished(model or "none", outcome, seconds, ttft, passage.queued_s)
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
        queued=round(passage.queued_s, 4),
        tokens=sum(attempt.received for attempt in passage.attempts),
        workers=[attempt.wid for attempt in passage.attempts],
    )
