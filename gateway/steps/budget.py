"""Step 3: reserve what the request may use. For now a bound on concurrent streams per tenant."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.context import House, Passage
from shared.errors import RateLimitError


@contextmanager
def reserved(house: House, passage: Passage) -> Iterator[None]:
    """Hold the request's streams while it runs. Raises RateLimitError when the tenant holds too many already."""
    principal, ask = passage.principal, passage.ask
    limit = principal.max_streams or house.settings.limits.tenant_streams
    if not house.concurrency.take(principal.tenant_id, ask.n, limit):
        raise RateLimitError(
            f"Too many concurrent streams: this tenant may hold {limit}.",
            code="concurrency",
            retry_after=1,
            retryable=True,
        )
    try:
        yield
    finally:
        house.concurrency.give(principal.tenant_id, ask.n)
