"""Step 2: whose key is it, and may it do this? Only then is the body read, decoded and validated."""

import asyncio

from gateway.api import decode_chat, decode_completion
from gateway.context import Arrival, Exchange, House, Passage
from gateway.core import networks
from gateway.services.keyring import Principal
from gateway.services.usage_writer import Bill
from shared.errors import AuthenticationError, PermissionDeniedError, RateLimitError, UnavailableError


def identify(house: House, exchange: Exchange, scope: str = "inference") -> Principal:
    """The tenant behind the key, and what the key may do, from memory.

    Raises:
        AuthenticationError: There is no key, or a bad one.
        RateLimitError: A bad one, from where too many came.
        PermissionDeniedError: A good one that may not be used from there, or not for this.
        UnavailableError: Keys are known to have changed, and cannot be read.
    """
    now = asyncio.get_running_loop().time()
    if house.freshness.stale(now):
        raise UnavailableError(
            "Keys cannot be checked at the moment.", code="keys_stale", retry_after=1, retryable=True
        )
    scheme, _, key = (exchange.header(b"authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise AuthenticationError(
            "You didn't provide an API key. Provide it in the Authorization header: Bearer <key>."
        )
    try:
        principal = house.keyring.check(key.strip())
    except AuthenticationError:
        _slow_down(house, exchange, now)
        raise
    rules = principal.rules
    if rules.networks is not None:
        address = _address(house, exchange)
        if address is None or address not in rules.networks:
            where = "here" if address is None else str(address)
            raise PermissionDeniedError(f"This API key may not be used from {where}.", code="ip_not_allowed")
    if scope not in rules.scopes:
        raise PermissionDeniedError(f"This API key lacks the scope '{scope}'.", code="scope_missing")
    house.last_used.used(principal.key_id)
    return principal


async def authenticate(house: House, exchange: Exchange, arrival: Arrival) -> Passage:
    """The request with its tenant and its decoded body.

    Raises what `identify` raises, InvalidRequestError, PermissionDeniedError for a model that the key may not use, or
    UnavailableError while this gateway is cut off from all workers.
    """
    if house.freshness.cut_off(asyncio.get_running_loop().time()):
        raise UnavailableError(
            "This gateway has lost its connection to the workers.", code="cut_off", retry_after=1, retryable=True
        )
    principal = identify(house, exchange)
    limits = house.settings.limits
    body = await exchange.read_body(limits.body_bytes, limits.body_read_s)
    ask = (decode_chat if arrival.endpoint == "chat" else decode_completion)(body, limits)
    if not principal.rules.allows(ask.model):
        raise PermissionDeniedError(
            f"This API key may not use the model '{ask.model}'.", code="model_not_allowed", param="model"
        )
    return Passage(
        arrival=arrival,
        principal=principal,
        ask=ask,
        limits=house.settings.model(ask.model),
        body_bytes=len(body),
        inbox=house.streams.inbox(exchange.drop),
        bill=Bill(
            id=arrival.own_id,
            label=arrival.request_id,
            tenant=principal.tenant_id,
            key=principal.key_id,
            streamed=ask.stream,
        ),
    )


def _address(house: House, exchange: Exchange) -> networks.Address | None:
    return networks.client(exchange.client, exchange.forwarded(), house.trusted)


def _slow_down(house: House, exchange: Exchange, now: float) -> None:
    """Count a bad key. Raises RateLimitError if too many came from there; good keys from there are not affected."""
    address = _address(house, exchange)
    wait = house.guesses.bad(now, exchange.client if address is None else address.source)
    if wait:
        raise RateLimitError(
            "Too many incorrect API keys came from your address.",
            code="too_many_bad_keys",
            retry_after=wait,
            retryable=True,
        )
