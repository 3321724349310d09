"""Errors to bytes on the operators' door: RFC 9457, `application/problem+json`, whatever went wrong."""

import math
import traceback
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.openapi.datastructures import ResponseSpec

from gateway.steps.accept import request_id
from shared.errors import (
    AuthenticationError,
    ConflictError,
    EvenflowError,
    HttpError,
    InvalidRecordError,
    RequestError,
    StaleRecordError,
    StoreError,
    UnknownRecordError,
)

MEDIA_TYPE: Final = "application/problem+json"
HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Of every answer: what browsers must not do with it."""
RETRY_STORE_S: Final = 2
_LONGEST_PATH: Final = 200
_TITLES: Final = {
    400: "Bad request",
    401: "Who are you?",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    412: "Changed meanwhile",
    413: "Too large",
    415: "Unsupported media type",
    422: "Not the same request",
    428: "Say which version",
    429: "Too many requests",
    500: "Our fault",
    503: "Not available",
}

log = structlog.get_logger("evenflow.admin")


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with one field."""

    field: str
    message: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An RFC 9457 problem. `code` is for programs, `detail` for people, `request_id` for whoever reads the log."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: tuple[Fault, ...] = ()


class PreconditionRequiredError(RequestError):
    """A change of something that has versions must say which one it is meant for."""

    status = 428
    default_code = "precondition_required"


class RepeatedError(RequestError):
    """An Idempotency-Key that named another request."""

    status = 422
    default_code = "idempotency_key_reused"


class UnderWayError(RequestError):
    """The same request, sent before, has not been answered yet."""

    status = 409
    default_code = "under_way"


def refuse(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """The answer to whatever was raised. What nobody meant to raise is a 500, and its cause is in the log alone."""
    rid = request_id(request.headers.get("x-request-id"))
    status, code, detail = _judge(request, error)
    if status >= 500:  # noqa: PLR2004
        _log(request, error, rid)
    problem = Problem(
        f"urn:evenflow:problem:{code}", _TITLES.get(status, "Refused"), status, detail, code, rid, _faults(error)
    )
    headers = HEADERS | {"x-request-id": rid} | _headers(status, error)
    return Response(problem, status_code=status, headers=headers, media_type=MEDIA_TYPE)


def _log(request: Request[Any, Any, Any], error: Exception, rid: str) -> None:
    """What our own errors say, and of others which and where: a driver's message may repeat what it was to write."""
    why = str(error) if isinstance(error, EvenflowError) else type(error).__name__
    where = [] if isinstance(error, EvenflowError) else traceback.format_tb(error.__traceback__)
    log.error("admin_request_failed", request_id=rid, path=request.url.path[:_LONGEST_PATH], error=why, where=where)


def _judge(request: Request[Any, Any, Any], error: Exception) -> tuple[int, str, str]:
    """Status, code and detail."""
    path = request.url.path[:_LONGEST_PATH]
    match error:
        case AuthenticationError():
            return error.status, "unauthenticated", error.message
        case HttpError():
            return error.status, error.code or "refused", error.message
        case InvalidRecordError():
            return 400, "invalid_value", _sentence(error)
        case UnknownRecordError():
            return 404, "not_found", _sentence(error)
        case ConflictError():
            return 409, "conflict", _sentence(error)
        case StaleRecordError():
            return 412, "stale", _sentence(error)
        case StoreError():
            # Where the store is, and what its driver says, is for the log.
            return 503, "store_unavailable", "The store does not answer."
        case MethodNotAllowedException():
            return 405, "method_not_allowed", f"{request.method} is not allowed on {path}."
        case NotFoundException():
            return 404, "unknown_url", f"There is nothing at {path}."
        case HTTPException() if error.status_code < 500:  # noqa: PLR2004
            return error.status_code, _CODES.get(error.status_code, "refused"), error.detail
        case _:
            return 500, "internal", "Something went wrong here; the log has it under this request id."


_CODES: Final = {400: "invalid_value", 413: "payload_too_large", 415: "unsupported_media_type"}


def _headers(status: int, error: Exception) -> dict[str, str]:
    if isinstance(error, HttpError) and error.retry_after is not None:
        return {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if status == 401:  # noqa: PLR2004
        return {"www-authenticate": "Bearer"}
    if isinstance(error, MethodNotAllowedException):
        return {"allow": (error.headers or {}).get("allow", "")}
    if isinstance(error, StoreError) and status == 503:  # noqa: PLR2004
        return {"retry-after": str(RETRY_STORE_S)}
    return {}


def _faults(error: Exception) -> tuple[Fault, ...]:
    if not isinstance(error, ValidationException) or not isinstance(error.extra, list):
        return ()
    return tuple(
        Fault(str(item.get("key", "")), str(item.get("message", ""))) for item in error.extra if isinstance(item, dict)
    )


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


READ: Final = (400, 401, 403, 503)
CHANGE: Final = (400, 401, 403, 404, 409, 412, 413, 415, 428, 503)
CREATE: Final = (400, 401, 403, 409, 413, 415, 422, 503)


def documented(*statuses: int) -> dict[int, ResponseSpec]:
    """The same errors for OpenAPI's description of a route."""
    return {
        status: ResponseSpec(Problem, description=_TITLES[status], media_type=MEDIA_TYPE, generate_examples=False)
        for status in statuses
    }
