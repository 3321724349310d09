"""What a client is told of quotas: refusals as errors, windows as headers."""

from gateway.core.accounts import Gauge
from gateway.core.quotas import Refusal
from shared.errors import HttpError, InvalidRequestError, QuotaExceededError, RateLimitError

_SOON_S = 1.0
"""When to come back for what ends when a stream ends, which nobody knows."""


def refused(refusal: Refusal, next_period_s: float) -> HttpError:
    """A refusal as an error; a budget's next period begins in so many seconds."""
    who = _who(refusal.scope)
    limit = refusal.limit
    match refusal.why:
        case "requests" | "tokens":
            wait_s = (refusal.wait_ms or 0) / 1000
            return RateLimitError(
                f"Rate limit reached: {who} may use {limit} {refusal.why} per minute. Try again in {wait_s:.3f} s.",
                code=refusal.why,
                retry_after=wait_s,
                retryable=True,
            )
        case "concurrency":
            return RateLimitError(
                f"Too many concurrent streams: {who} may hold {limit}.",
                code="concurrency",
                retry_after=_SOON_S,
                retryable=True,
            )
        case "long_prompts":
            return RateLimitError(
                f"Too many long prompts at once: {who} may have {limit} in flight.",
                code="long_prompts",
                retry_after=_SOON_S,
                retryable=True,
            )
        case "daily" | "monthly":
            return QuotaExceededError(
                f"The {refusal.why} budget is used up: {who} may use {limit} tokens"
                f" {'a day' if refusal.why == 'daily' else 'a month'}.",
                retry_after=next_period_s,
            )
        case "too_large":
            return InvalidRequestError(
                f"The request can never fit: {who} may use {limit} tokens per minute, prompt and output together.",
                code="tokens_over_limit",
                param="max_tokens",
            )


def rate_headers(windows: tuple[Gauge | None, Gauge | None]) -> list[tuple[bytes, bytes]]:
    """What a client is told of its windows: OpenAI's headers, and the IETF's (draft-ietf-httpapi-ratelimit-headers)."""
    headers: list[tuple[bytes, bytes]] = []
    policies, states = [], []
    for name, gauge in zip(("requests", "tokens"), windows, strict=True):
        if gauge is None:
            continue
        headers += (
            (f"x-ratelimit-limit-{name}".encode(), b"%d" % gauge.limit),
            (f"x-ratelimit-remaining-{name}".encode(), b"%d" % gauge.left),
            (f"x-ratelimit-reset-{name}".encode(), duration(gauge.reset_ms).encode()),
        )
        policies.append(f'"{name}";q={gauge.limit};w=60')
        states.append(f'"{name}";r={gauge.left};t={-(-gauge.reset_ms // 1000)}')
    if policies:
        headers += ((b"ratelimit-policy", ", ".join(policies).encode()), (b"ratelimit", ", ".join(states).encode()))
    return headers


def duration(ms: int) -> str:
    """As OpenAI writes it: `0s`, `17ms`, `1.5s`, `6m0s`."""
    if 0 < ms < 1000:  # noqa: PLR2004
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{seconds}" if minutes else seconds


def _who(scope: object) -> str:
    _, key, model = scope if isinstance(scope, tuple) else ("", "", "")
    whose = "this key" if key else "this tenant"
    return f"{whose} for the model '{model}'" if model else whose
