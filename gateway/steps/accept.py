"""Step 1: look at the headers and open the request's record. The body is not touched yet."""

import re
import secrets
import time

from gateway.context import Arrival, Endpoint, Exchange, House
from shared.errors import InvalidRequestError, MediaTypeError, PayloadTooLargeError, UnavailableError
from shared.tracing import Trace

_MILLISECONDS = re.compile(r"0*[1-9][0-9]{0,11}")
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def accept(
    house: House, exchange: Exchange, endpoint: Endpoint, request_id: str, now: float, *, trace: Trace
) -> Arrival:
    """Open the record. Raises MediaTypeError, PayloadTooLargeError, InvalidRequestError or UnavailableError."""
    if house.draining.is_set():
        raise UnavailableError("The gateway is shutting down.", code="draining", retry_after=1, retryable=True)
    limits = house.settings.limits
    media_type = (exchange.header(b"content-type") or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise MediaTypeError("The request body must be declared as application/json.", param=None)
    length = exchange.header(b"content-length")
    if length is not None and length.isdigit() and int(length) > limits.body_bytes:
        raise PayloadTooLargeError(f"The request body is larger than {limits.body_bytes} bytes.")
    return Arrival(
        request_id=request_id,
        own_id=uuid7(),
        endpoint=endpoint,
        arrived=now,
        deadline=now + _allowed(exchange.header(b"x-evenflow-timeout-ms"), limits.request_s),
        created=int(time.time()),
        trace=trace,
    )


def request_id(asked: str | None) -> str:
    """The client's own id if it is sane, else a new one (UUIDv7: sorts by time)."""
    if asked is not None and _SANE_ID.fullmatch(asked):
        return asked
    return uuid7()


def uuid7() -> str:
    """A UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then chance."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _allowed(asked: str | None, most: float) -> float:
    """Seconds this request may take: the client can only lower it."""
    if asked is None:
        return most
    if not _MILLISECONDS.fullmatch(asked):
        raise InvalidRequestError(
            "x-evenflow-timeout-ms must be a positive whole number of milliseconds.", param="x-evenflow-timeout-ms"
        )
    return min(most, int(asked) / 1000)
