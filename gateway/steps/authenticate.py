"""Step 2: whose key is it? Only then is the body read, decoded and validated."""

from gateway.api import decode_chat, decode_completion
from gateway.context import Arrival, Exchange, House, Passage
from gateway.services.keyring import Principal
from gateway.services.usage_writer import Bill
from shared.errors import AuthenticationError


def identify(house: House, exchange: Exchange) -> Principal:
    """The tenant behind the key, from memory. Raises AuthenticationError."""
    scheme, _, key = (exchange.header(b"authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise AuthenticationError(
            "You didn't provide an API key. Provide it in the Authorization header: Bearer <key>."
        )
    return house.keyring.check(key.strip())


async def authenticate(house: House, exchange: Exchange, arrival: Arrival) -> Passage:
    """The request with its tenant and its decoded body. Raises AuthenticationError, then InvalidRequestError."""
    principal = identify(house, exchange)
    limits = house.settings.limits
    body = await exchange.read_body(limits.body_bytes, limits.body_read_s)
    ask = (decode_chat if arrival.endpoint == "chat" else decode_completion)(body, limits)
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
