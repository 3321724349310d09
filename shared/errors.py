"""Everything that can go wrong, as one tree.

    EvenflowError
    ├── RequestError                 the caller's doing; knows its HTTP status, OpenAI `type`, `code` and `param`
    │   ├── InvalidRequestError      400  invalid_value, invalid_json, unsupported_value, ...
    │   │   └── ContextLengthError   400  context_length_exceeded, with both counts
    │   ├── AuthenticationError      401  invalid_api_key: one message for every kind of bad key
    │   ├── PermissionDeniedError    403  model_not_allowed, ip_not_allowed, scope_missing
    │   ├── NotFoundError            404  model_not_found, not_found
    │   ├── MethodNotAllowedError    405
    │   ├── RequestTimeoutError      408  the body did not arrive in time
    │   ├── PayloadTooLargeError     413
    │   ├── MediaTypeError           415
    │   ├── HeadTooLargeError        431
    │   └── RateLimitError           429  requests, tokens, concurrency, queue_full, too_many_bad_keys; with retry_after
    │       └── QuotaExceededError   429  insufficient_quota: a budget is used up
    ├── ServiceError                 ours; also knows its status
    │   ├── UnavailableError         503  overloaded, no_worker, draining, keys_stale, cut_off; with retry_after
    │   ├── DeadlineError            504  timeout
    │   └── UpstreamError            502  a worker failed the request; says whether a retry can help
    ├── ClientGoneError              the client left: nobody to answer, only to clean up after
    ├── StoreError                   tenants and keys cannot be read or written
    │   ├── InvalidRecordError       a name or value that may not be stored
    │   ├── UnknownRecordError       no such tenant or key
    │   ├── ConflictError            the name is taken
    │   └── StaleRecordError         somebody else changed it since it was read
    ├── SettingsError                a configuration that cannot work, with the full path of the wrong key
    ├── StartError                   the machine is not as a start needs it: port taken, disk full, already running
    ├── ProtocolError                a peer broke the wire protocol
    ├── BusError                     NATS cannot be reached or refused us
    │   └── NoStreamError            a stream is not there (yet)
    ├── ModelError                   a model file is missing, altered or cannot be used
    └── EngineError                  an engine failed to load or died

Raise the most exact class. Only `gateway.http.problems` turns one into bytes.
"""

from typing import ClassVar


class EvenflowError(Exception):
    """Base of every error that Evenflow raises on purpose."""


class HttpError(EvenflowError):
    """An error with an HTTP shape: OpenAI's `{"error": {"message", "type", "param", "code"}}` on the tenant plane.

    `retry_after` is in seconds, `None` where repeating is no use. `headers` go out with it.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after = retry_after
        self.retryable = retryable
        self.headers: list[tuple[bytes, bytes]] = []


class RequestError(HttpError):
    """The caller's doing; sending the same again gives the same answer."""

    status = 400
    kind = "invalid_request_error"


class InvalidRequestError(RequestError):
    """A body that cannot be served as asked; `param` names the field."""

    default_code = "invalid_value"


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt + max_tokens, is longer than the model's context. Counts are in tokens.

    `at_least`: the prompt is so long that its tokens were not counted; `prompt_tokens` is a lower bound.
    """

    default_code = "context_length_exceeded"

    def __init__(
        self,
        *,
        prompt_tokens: int,
        max_tokens: int | None,
        context: int,
        param: str = "messages",
        at_least: bool = False,
    ) -> None:
        count = f"at least {prompt_tokens}" if at_least else f"{prompt_tokens}"
        asked = (
            f"your prompt has {count} tokens."
            if max_tokens is None or at_least
            else f"you requested {prompt_tokens + max_tokens} tokens"
            f" ({count} in the prompt, {max_tokens} for the completion)."
        )
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, {asked}",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context = context


class AuthenticationError(RequestError):
    """One message for a missing, unknown, expired or revoked key, so that nothing can be learnt from it."""

    status = 401
    kind = "authentication_error"
    default_code = "invalid_api_key"

    def __init__(self, message: str = "Incorrect API key provided.") -> None:
        super().__init__(message)


class PermissionDeniedError(RequestError):
    """A good key that may not do this."""

    status = 403
    kind = "permission_error"


class NotFoundError(RequestError):
    """No such model or path."""

    status = 404
    default_code = "not_found"


class MethodNotAllowedError(RequestError):
    """The path exists, the method does not; `allow` lists those that do."""

    status = 405
    default_code = "method_not_allowed"

    def __init__(self, message: str, *, allow: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allow = allow


class RequestTimeoutError(RequestError):
    """The client took too long to send its body."""

    status = 408
    default_code = "request_timeout"


class PayloadTooLargeError(RequestError):
    """The body is over the limit; it was not read further."""

    status = 413
    default_code = "payload_too_large"


class MediaTypeError(RequestError):
    """The body is not declared as JSON."""

    status = 415
    default_code = "unsupported_media_type"


class HeadTooLargeError(RequestError):
    """Request line and headers are over the limit; they were not read further."""

    status = 431
    default_code = "headers_too_large"


class RateLimitError(RequestError):
    """Too much at once; `retry_after` says when to come back."""

    status = 429
    kind = "rate_limit_error"


class QuotaExceededError(RateLimitError):
    """A budget is used up; `retry_after` is when the next period begins."""

    kind = "insufficient_quota"
    default_code = "insufficient_quota"


class ServiceError(HttpError):
    """Our doing; the same request may well succeed later."""

    status = 500


class UnavailableError(ServiceError):
    """No capacity: overloaded, no_worker or draining."""

    status = 503
    kind = "service_unavailable"
    default_code = "overloaded"


class DeadlineError(ServiceError):
    """The request's deadline passed, in the queue or while generating."""

    status = 504
    kind = "timeout_error"
    default_code = "timeout"


class UpstreamError(ServiceError):
    """A worker failed this request."""

    status = 502
    kind = "server_error"
    default_code = "worker_failed"


class ClientGoneError(EvenflowError):
    """The client left. Nothing is sent; what the request held is given back."""


class StoreError(EvenflowError):
    """The store of tenants and keys cannot be opened, read or written. The message never holds a secret."""


class InvalidRecordError(StoreError):
    """A name or value that may not be stored; the message says what may."""


class UnknownRecordError(StoreError):
    """No such tenant or key."""


class ConflictError(StoreError):
    """The name is taken."""


class StaleRecordError(StoreError):
    """Somebody else changed the row since it was read: look again, then decide."""


class SettingsError(EvenflowError):
    """A configuration that cannot work. The message starts with the full path of the wrong key."""


class StartError(EvenflowError):
    """The machine is not as a start needs it: a port taken, a disk full, a second start. One line for a terminal."""


class ProtocolError(EvenflowError):
    """A peer sent something that the wire protocol does not allow."""


class BusError(EvenflowError):
    """NATS cannot be reached, or refused what was asked."""


class NoStreamError(BusError):
    """JetStream has no such stream: it was not made yet, or has not been recovered yet."""


class ModelError(EvenflowError):
    """A model file is missing, altered, or of a kind that the engine cannot use."""


class EngineError(EvenflowError):
    """An engine failed to load, or died."""
