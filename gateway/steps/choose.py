"""Step 4: which version does the model's name mean, whose turn is it, and which worker takes it?"""

from gateway.api import lacks, needs
from gateway.context import House, Passage
from gateway.core.fleet import Pool
from gateway.core.line import Ticket
from shared import telemetry
from shared.errors import InvalidRequestError, NotFoundError, UnavailableError


def resolve(house: House, passage: Passage) -> Pool:
    """Fill in the pool. Raises NotFoundError, UnavailableError, or InvalidRequestError for what the model cannot do."""
    ask = passage.ask
    entry = passage.limits
    model = entry.model or ask.model
    version = entry.version or house.fleet.newest(model)
    if version is None and not any(entry is known for known in house.settings.models):
        if not house.fleet.workers:  # just started: what does not exist is not known yet
            raise UnavailableError(
                "No worker has announced itself yet.", code="no_worker", retry_after=2, retryable=True
            )
        raise NotFoundError(
            f"The model '{ask.model}' does not exist or you do not have access to it.",
            code="model_not_found",
            param="model",
        )
    pool = (model, version or "")
    ready = house.fleet.ready(pool)
    if not ready:
        raise UnavailableError(
            f"No worker serves the model '{ask.model}' now.", code="no_worker", retry_after=2, retryable=True
        )
    missing = needs(ask) - frozenset().union(*(v.features for v in ready))
    if missing:
        raise lacks(ask, missing)
    most = max(version.max_output for version in ready)
    most = min(most, entry.max_output or most)
    if ask.max_tokens is not None and ask.max_tokens > most:
        raise InvalidRequestError(
            f"max_tokens is too large: {ask.max_tokens}. This model supports at most {most} completion tokens.",
            param="max_tokens",
        )
    passage.pool = pool
    passage.bill.model, passage.bill.version = pool
    return pool


def ticket(house: House, passage: Passage, now: float) -> Ticket:
    """One choice's place in the line."""
    return house.turnstile.ticket(passage.pool, passage.principal.tenant_id, now)


async def turn(house: House, passage: Passage, ticket: Ticket, *, again: bool) -> str:
    """Wait for a fair turn; the worker that takes it, already counted. Raises what the turnstile raises."""
    with passage.arrival.trace.step(telemetry.SPAN_QUEUE):
        return await house.turnstile.turn(ticket, again=again)
