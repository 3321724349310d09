"""Step 6: send the job and wait for the worker's word."""

import asyncio
from typing import NamedTuple

from gateway.context import House, Passage
from gateway.core.line import Ticket
from gateway.outcome import from_fail, from_nack
from gateway.services.streams import Attempt
from shared import telemetry, wire
from shared.errors import UnavailableError
from shared.tracing import Attributes


class AttemptName(NamedTuple):
    """Which attempt at which choice of a request."""

    choice: int
    attempt: int


_ELSEWHERE = frozenset({"busy", "draining", "unknown_model"})
_POISON = 2
"""A request that was with two workers when they died is not given a third."""
_PATIENCE = 4
"""Nor is one that four workers in a row did not answer: it may be what keeps them busy."""


async def dispatch(house: House, passage: Passage, ticket: Ticket, wid: str, name: AttemptName) -> Attempt | None:
    """The accepted attempt, or None if the request should ask for another turn. Raises what a final refusal means."""
    with passage.arrival.trace.step(telemetry.SPAN_DISPATCH, "producer") as span:
        span.describe(_attributes(wid, name))
        attempt = house.streams.register(
            wid,
            lambda sid: _job(house, passage, sid, name),
            size=passage.body_bytes,
            choice=name.choice,
            inbox=passage.inbox,
            headers=span.headers(),
        )
        passage.attempts.append(attempt)
        await house.usage.opening(passage.bill, attempt, max_tokens=passage.ask.max_tokens)
        await house.streams.send(attempt)
        answer = await attempt.answer
        if isinstance(answer, wire.Accept):
            _counted(house, passage, answer)
            return attempt
        passage.attempts.remove(attempt)
        if answer is None or isinstance(answer, wire.Fail):
            why = "unanswered" if answer is None else answer.code
            span.fault(why)
            ticket.avoid |= {wid}
            ticket.lost += answer is not None
            ticket.unanswered += answer is None
            if answer is not None and ticket.lost >= _POISON:
                raise from_fail(answer, passage.ask)
            if ticket.unanswered >= _PATIENCE:
                raise UnavailableError("No worker answered in time.", code="overloaded", retry_after=5, retryable=True)
            _retried(passage, wid, why)
            return None
        span.describe({telemetry.REFUSAL: answer.code})
        if answer.code in _ELSEWHERE:
            house.fleet.refused(asyncio.get_running_loop().time(), wid)
            house.turnstile.look_later()
            _retried(passage, wid, answer.code)
            return None
        if answer.code == "too_large" and answer.error_code in {"budget", "window"} and passage.reservation is not None:
            raise house.quotas.too_small(passage.principal, passage.reservation, answer.error_code)
        raise from_nack(answer, passage.ask)


def _counted(house: House, passage: Passage, accept: wire.Accept) -> None:
    """What was reserved for a longer prompt, or a longer answer, goes back."""
    if passage.reservation is not None:
        house.quotas.counted(passage.bill.id, passage.pool[0], passage.size, passage.room, accept)


def _attributes(wid: str, name: AttemptName) -> Attributes:
    return {
        telemetry.WORKER_NAME: wid,
        telemetry.ATTEMPT_CHOICE: name.choice,
        telemetry.ATTEMPT_NUMBER: name.attempt,
    }


def _retried(passage: Passage, wid: str, why: str) -> None:
    passage.arrival.trace.event(telemetry.EVENT_RETRIED, {telemetry.WORKER_NAME: wid, telemetry.REFUSAL: why})


def _job(house: House, passage: Passage, sid: int, name: AttemptName) -> wire.Job:
    ask = passage.ask
    left_s = passage.arrival.deadline - asyncio.get_running_loop().time()
    return wire.Job(
        gep=house.epoch,
        sid=sid,
        aid=f"{passage.arrival.own_id}.{name.choice}.{name.attempt}",
        tenant=passage.principal.tenant_id,
        model=passage.pool[0],
        version=passage.pool[1],
        kind=ask.kind,
        input=ask.input,
        tools=ask.tools,
        sampling=ask.sampling,
        stop=ask.stop,
        max_tokens=ask.max_tokens,
        # Choices of one request differ, and a seed makes the whole request repeatable.
        seed=None if ask.seed is None else (ask.seed + name.choice) & 0xFFFFFFFF,
        logprobs=ask.logprobs,
        grammar=ask.grammar,
        deadline_ms=max(1, int(left_s * 1000)),
        service_class=ask.service_class,
        most_prompt=passage.limits.max_input or None,
        most_output=passage.limits.max_output or None,
        most_total=passage.reservation.total if passage.reservation is not None else None,
        window=(passage.reservation.window or None) if passage.reservation is not None else None,
        choices=ask.n,
    )
