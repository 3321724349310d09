"""Errors to bytes: OpenAI's error JSON, and the headers that tell a client what to do next.

Official clients retry 408, 409, 429 and every 5xx unless `x-should-retry` says no, so it is always said. A wait beyond
`PATIENCE_S` counts as no: the Python client would not wait so long but come back at once, and the Node one would sleep
through it, hours if need be.
"""

import math
import traceback
from typing import Final

import msgspec
import structlog

from gateway.outcome import error_object
from shared.errors import AuthenticationError, HttpError, MethodNotAllowedError, RateLimitError, UnavailableError

PATIENCE_S: Final = 120.0
LONGEST_S: Final = 366 * 86_400.0  # a header has no word for "never"

_logger = structlog.get_logger("evenflow.http")

Headers = list[tuple[bytes, bytes]]


def render(exc: BaseException, request_id: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body for `exc`. Anything but an HttpError is a 500 that keeps its cause for the log."""
    body = msgspec.json.encode({"error": error_object(exc)})
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode("latin-1", "replace")),
        (b"x-should-retry", b"true" if _can_help(exc) else b"false"),
    ]
    if not isinstance(exc, HttpError):
        _log(exc, request_id)
        return HttpError.status, headers, body
    wait = _wait_s(exc)
    if wait is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait))))
        headers.append((b"retry-after-ms", b"%d" % max(1, math.ceil(wait * 1000))))
    if isinstance(exc, MethodNotAllowedError):
        headers.append((b"allow", ", ".join(exc.allow).encode("ascii")))
    if isinstance(exc, AuthenticationError):
        headers.append((b"www-authenticate", b"Bearer"))
    headers += exc.headers
    return exc.status, headers, body


def _log(exc: BaseException, request_id: str) -> None:
    """Which error and where, but not its message: that may quote what the client sent, and prompts are never logged."""
    where = traceback.format_tb(exc.__traceback__)
    _logger.error("unexpected error", request_id=request_id, error=type(exc).__name__, where=where)


def _wait_s(exc: HttpError) -> float | None:
    wait = exc.retry_after
    return None if wait is None or math.isnan(wait) else max(0.0, min(wait, LONGEST_S))


def _can_help(exc: BaseException) -> bool:
    """Whether sending the same again, as official clients would, can succeed."""
    if not isinstance(exc, HttpError):
        return False
    wait = _wait_s(exc)
    if isinstance(exc, RateLimitError):
        return wait is not None and wait <= PATIENCE_S
    if isinstance(exc, UnavailableError):
        return wait is None or wait <= PATIENCE_S
    return exc.status >= HttpError.status and exc.retryable
