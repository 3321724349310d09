"""Step 3: which model and version does the name mean, and can they do what is asked?"""

from gateway.api import lacks, needs
from gateway.context import House, Passage
from gateway.services.quotas import Room
from shared.errors import InvalidRequestError, NotFoundError, UnavailableError


def resolve(house: House, passage: Passage) -> None:
    """Fill in the pool and its room. Raises NotFoundError, UnavailableError, or InvalidRequestError."""
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
    passage.room = Room(
        context=max(version.context for version in ready),
        output=most,
        template=max(version.template_tokens for version in ready),
        message=max(version.message_tokens for version in ready),
    )
    passage.bill.model, passage.bill.version = pool
