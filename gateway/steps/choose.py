"""Step 5: whose turn is it, and which worker takes it?"""

from gateway.context import House, Passage
from gateway.core.line import Ticket
from shared import telemetry


def ticket(house: House, passage: Passage, now: float) -> Ticket:
    """One choice's place in the line."""
    return house.turnstile.ticket(passage.pool, passage.principal.tenant_id, now)


async def turn(house: House, passage: Passage, ticket: Ticket, *, again: bool) -> str:
    """Wait for a fair turn; the worker that takes it, already counted. Raises what the turnstile raises."""
    with passage.arrival.trace.step(telemetry.SPAN_QUEUE):
        return await house.turnstile.turn(ticket, again=again)
