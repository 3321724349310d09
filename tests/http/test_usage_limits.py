"""Limits as `GET /v1/usage` shows them."""

from gateway.core.accounts import Gauge, Limits
from gateway.http.usage import limits
from gateway.services.quotas import Standing


def standing(allowed, **more):
    values = {
        "key_id": "", "model": "", "limits": allowed, "requests": None, "tokens": None, "streams": 0, "long_prompts": 0,
        "day_used": 70, "day_held": 40, "day_ends": 5, "month_used": 700, "month_held": 40, "month_ends": 6,
    }  # fmt: skip
    return Standing(**values | more)


def test_what_is_not_limited_is_counted_all_the_same():
    shown = limits(standing(Limits(streams=32), streams=2))
    assert (shown["scope"], shown["model"]) == ("tenant", None)
    assert shown["requests_per_minute"] is shown["tokens_per_minute"] is None
    assert shown["streams"] == {"limit": 32, "used": 2}
    assert shown["daily_tokens"] == {"limit": None, "used": 70, "held": 40, "remaining": None, "resets_at": 5}


def test_what_is_left_of_a_budget_is_what_nobody_holds():
    allowed = Limits(tokens=1_000, daily=100, monthly=1_000, strict=True)
    shown = limits(standing(allowed, tokens=Gauge(1_000, 744, 15_360), key_id="k1", model="m"))
    assert (shown["scope"], shown["model"], shown["strict"]) == ("key", "m", True)
    assert shown["tokens_per_minute"] == {"limit": 1_000, "remaining": 744, "reset_ms": 15_360}
    assert shown["daily_tokens"]["remaining"] == 0, "a lowered limit may be behind what is used already"
    assert shown["monthly_tokens"]["remaining"] == 260
