"""What a worker's refusal or failure means to the client: `Nack` and `Fail` to the one error that says it.

Below the steps and pure, so that steps need nothing from `http/`. Messages of a worker reach the client only where they
speak of the client's own request; what went wrong inside a worker does not.
"""

from typing import Any

from gateway.api import Ask
from shared.errors import (
    ContextLengthError,
    DeadlineError,
    HttpError,
    InvalidRequestError,
    UnavailableError,
    UpstreamError,
)
from shared.wire import Fail, Nack

# Seconds to come back after when a worker does not say.
RETRY_S = 1.0


def from_nack(nack: Nack, ask: Ask) -> HttpError:
    """The error for a job that a worker did not take."""
    retry_after = nack.retry_after_ms / 1000 if nack.retry_after_ms > 0 else RETRY_S
    match nack.code:
        case "too_large" if nack.limit > 0:
            return ContextLengthError(
                prompt_tokens=nack.prompt_tokens,
                max_tokens=ask.max_tokens,
                context=nack.limit,
                param=nack.param or ask.input_param,
                at_least=nack.error_code == "at_least",
            )
        case "too_large":
            return _too_long(nack.message, nack.param or ask.input_param)
        case "bad_request":
            return InvalidRequestError(nack.message, param=nack.param or None)
        case "busy":
            return UnavailableError(
                "The model is overloaded. Please try again later.", code="overloaded", retry_after=retry_after
            )
        case "draining":
            return UnavailableError(
                "The worker is shutting down. Please try again.", code="draining", retry_after=retry_after
            )
        case "unknown_model":
            return UnavailableError(
                f"No worker serves the model '{ask.model}' now.", code="no_worker", retry_after=retry_after
            )
        case "deadline":
            return late()
        case _:
            return _worker_failed(retryable=True)


def from_fail(fail: Fail, ask: Ask) -> HttpError:
    """The error for a generation that a worker gave up. Tokens made before it are in `fail.usage`."""
    match fail.code:
        case "too_large":
            return _too_long(fail.message, ask.input_param)
        case "bad_request":
            field, colon, _ = fail.message.partition(": ")  # engines begin with the field, where one is to blame
            return InvalidRequestError(fail.message, param=field if colon and field.isidentifier() else None)
        case "deadline":
            return late()
        case "grammar_broken":
            return UpstreamError(
                f"The model could not be held to the response format: {fail.message}.", code="response_format_not_held"
            )
        case "unloaded" | "draining":
            return UnavailableError(
                "The model was unloaded. Please try again.",
                code="draining",
                retry_after=RETRY_S,
                retryable=fail.retryable,
            )
        case _:
            return _worker_failed(retryable=fail.retryable)


def late() -> DeadlineError:
    """The request's deadline passed."""
    return DeadlineError("The request took too long: its deadline has passed.")


def error_object(exc: BaseException) -> dict[str, Any]:
    """OpenAI's error object (the value of `error`). Of an exception that is no HttpError nothing is told."""
    if isinstance(exc, HttpError):
        return {"message": exc.message, "type": exc.kind, "param": exc.param, "code": exc.code}
    return {
        "message": "The server had an error while processing your request.",
        "type": HttpError.kind,
        "param": None,
        "code": "internal_error",
    }


def _too_long(message: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(message, code=ContextLengthError.default_code, param=param)


def _worker_failed(*, retryable: bool) -> UpstreamError:
    return UpstreamError("The worker failed while serving this request.", retryable=retryable)
