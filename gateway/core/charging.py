"""What a request costs its tenant: the rule, and the sum over all attempts and choices."""

import msgspec

from shared.wire import End, Fail, Timings, Usage

GOOD = "ok"
"""The outcome of a request whose whole answer was delivered."""
FINISHED = frozenset({"stop", "length"})
"""What `Totals.outcome` is then."""
CLIENTS_DOING = frozenset({GOOD, "client_left", "client_too_slow", "timeout"})
"""Outcomes after which all that was generated is paid for: it went well, or the client or its deadline ended it."""

OURS = frozenset(
    {
        "draining",
        "gateway_lost",
        "internal_error",
        "keys_stale",
        "no_worker",
        "overloaded",
        "queue_full",
        "queue_timeout",
        "response_format_not_held",
        "shutdown",
        "starting",
        "worker_failed",
    }
)
"""Outcomes that are no doing of the client's."""


def unused(outcome: str, tokens: int) -> bool:
    """Whether a request that is over and pays for `tokens` does not even count as one: we failed, and gave nothing."""
    return not tokens and outcome in OURS


class Spent(msgspec.Struct, frozen=True):
    """One attempt: tokens that arrived, the prompt as its worker accepted it, and what the worker said at the end."""

    received: int
    prompt: int
    terminal: End | Fail | None


class Totals(msgspec.Struct, frozen=True):
    """A request. Tokens; seconds of a device; milliseconds. `outcome` is `stop` or `length` where all went well."""

    outcome: str
    prompt: int
    cached: int
    charged: int
    generated: int
    accepted: int
    proposed: int
    device_seconds: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float


def totals(outcome: str, delivered: int, queued_ms: float, spent: list[Spent]) -> Totals:
    """Add up a request that is over. `delivered` tokens are on its client's socket; nothing is, of half a JSON answer.

    When we failed, what was delivered is charged, and the prompt only if something was: nobody pays for an error. When
    the client left, was too slow or set a deadline that passed, everything generated up to the cancel is.
    """
    used = [_usage(one) for one in spent]
    begun = [usage for usage in used if usage.completion] or [usage for usage in used if usage.prompt] or [Usage()]
    generated = sum(usage.completion for usage in used)
    ours = outcome not in CLIENTS_DOING
    charged = min(delivered, generated) if ours else generated
    free = ours and not charged
    times = [one.terminal.timings if isinstance(one.terminal, End) else Timings() for one in spent]
    return Totals(
        outcome=_finish(spent) if outcome == GOOD else outcome,
        prompt=0 if free else max(usage.prompt for usage in begun),
        # Choices that started later find the prompt in the cache; what every one of them found was never computed.
        cached=0 if free else min(usage.cached for usage in begun),
        charged=charged,
        generated=generated,
        accepted=sum(usage.accepted for usage in used),
        proposed=sum(usage.proposed for usage in used),
        device_seconds=sum(usage.device_seconds for usage in used),
        queue_ms=queued_ms + sum(time.queue_ms for time in times),
        prefill_ms=sum(time.prefill_ms for time in times),
        decode_ms=sum(time.decode_ms for time in times),
    )


def _usage(spent: Spent) -> Usage:
    """What the worker counted; where it had no last word, what it accepted and what arrived."""
    if spent.terminal is None:
        return Usage(prompt=spent.prompt, completion=spent.received)
    told = spent.terminal.usage
    # Whoever fails may not know any more how much it had made.
    return msgspec.structs.replace(
        told, prompt=told.prompt or spent.prompt, completion=max(told.completion, spent.received)
    )


def _finish(spent: list[Spent]) -> str:
    reasons = [one.terminal.reason for one in spent if isinstance(one.terminal, End)]
    return "length" if "length" in reasons else "stop"
