"""Step 4: reserve what the request may use: of its tenant's windows, budgets and streams, its key's, its model's."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.api import Ask
from gateway.context import House, Passage
from gateway.services.quotas import Size
from shared.errors import HttpError, UnavailableError


@contextmanager
def reserved(house: House, passage: Passage) -> Iterator[None]:
    """Hold it while the request runs; what it used settles when every worker has said its last word on it.

    Raises RateLimitError, QuotaExceededError, InvalidRequestError for what can never fit, or UnavailableError until
    what was used before this gateway started is known.
    """
    quotas, ask, bill = house.quotas, passage.ask, passage.bill
    if not quotas.restored:
        raise UnavailableError("The gateway is starting.", code="starting", retry_after=1, retryable=True)
    passage.size = size(ask)
    passage.reservation = held = quotas.reserve(
        bill.id,
        passage.principal,
        passage.pool[0],
        passage.size,
        passage.room,
        asked=ask.max_tokens,
        choices=ask.n,
    )
    bill.day, bill.reserved = held.periods.day, held.total
    bill.strict = any(hold.account.limits.strict for hold in held.holds)
    try:
        yield
    except HttpError as error:
        error.headers = quotas.headers(held)
        raise
    finally:
        quotas.leave(bill.id)


def size(ask: Ask) -> Size:
    """How large the prompt is, as far as a look at it tells."""
    if ask.kind == "ids":
        return Size(0, 0, exact=len(ask.input))
    if ask.kind == "text":
        return Size(_bytes(ask.input), 0)
    return Size(sum(_bytes(message.get("content") or "") for message in ask.input), len(ask.input))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
