"""Whose accounts, whose calendar, and what a client is told."""

from datetime import UTC, datetime

import pytest

from gateway.core.accounts import Gauge, Limits
from gateway.core.charging import Totals
from gateway.core.quotas import Refusal
from gateway.services.keyring import Principal
from gateway.services.quota_answers import duration, rate_headers
from gateway.services.quotas import Allowances, Room, Size
from gateway.store.rows import QuotaRow, Snapshot
from shared.errors import InvalidRequestError, QuotaExceededError, RateLimitError
from shared.settings import LimitSettings
from shared.wire import Accept

ROOM = Room(2_048, 512)
TEN = Size(0, 0, exact=10)
ME = Principal("t1", "acme", "k1")


class Clock:
    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def instant(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def wall():
    return Clock(instant("2026-03-10 12:00"))


@pytest.fixture
def quotas(clock, wall):
    made = Allowances(LimitSettings(tenant_streams=4, long_prompt_tokens=100), clock, wall)
    made.restored = True
    return made


def load(quotas, **places):
    """`tenant`, `key`, `model` or `key_model` and their limits."""
    where = {"tenant": ("", ""), "key": ("k1", ""), "model": ("", "m"), "key_model": ("k1", "m")}
    rows = [QuotaRow("t1", *where[name], limits, 0, 1) for name, limits in places.items()]
    quotas.load(Snapshot("s", 1, (), tuple(rows)))


def ask(quotas, request="r", *, who=ME, model="m", size=TEN, asked=10, choices=1):
    return quotas.reserve(request, who, model, size, ROOM, asked=asked, choices=choices)


def totals(prompt=10, charged=10, outcome="stop", generated=10):
    return Totals(outcome, prompt, 0, charged, generated, 0, 0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("place", ["tenant", "key", "model", "key_model"])
def test_each_place_bounds_what_it_is_for(quotas, place):
    load(quotas, **{place: Limits(requests=1)})
    ask(quotas, "a")
    with pytest.raises(RateLimitError) as refused:
        ask(quotas, "b")
    assert (refused.value.code, refused.value.retry_after) == ("requests", 60.0)
    other_key, other_model = Principal("t1", "acme", "k2"), {"model": "n"}
    for name, more, free in (("c", {"who": other_key}, place.startswith("key")), ("d", other_model, "model" in place)):
        if free:
            ask(quotas, name, **more)
        else:
            with pytest.raises(RateLimitError):
                ask(quotas, name, **more)
    ask(quotas, "e", who=Principal("t2", "other", "k1"))


def test_a_tenant_without_a_bound_has_the_one_of_the_settings(quotas):
    for n in range(4):
        ask(quotas, f"r{n}")
    with pytest.raises(RateLimitError, match="may hold 4") as refused:
        ask(quotas, "r4")
    assert (refused.value.code, refused.value.retry_after, refused.value.retryable) == ("concurrency", 1.0, True)
    assert quotas.streams() == 4
    load(quotas, tenant=Limits(requests=100))
    with pytest.raises(RateLimitError, match="may hold 4"):
        ask(quotas, "r4")
    load(quotas, tenant=Limits(streams=5))
    ask(quotas, "r4")


def test_the_wait_that_is_told_is_exact(quotas, clock):
    load(quotas, tenant=Limits(tokens=600))
    for n in range(3):
        ask(quotas, f"r{n}", asked=190)
        quotas.leave(f"r{n}")
    with pytest.raises(RateLimitError) as refused:
        ask(quotas, "late", asked=190)
    assert refused.value.retry_after == 20.0
    clock.now = 19.999
    with pytest.raises(RateLimitError) as refused:
        ask(quotas, "late", asked=190)
    assert refused.value.retry_after == 0.001
    headers = dict(refused.value.headers)
    assert headers[b"x-ratelimit-remaining-tokens"] == b"199"
    clock.now = 20.0
    ask(quotas, "late", asked=190)


def test_what_can_never_fit_is_not_a_matter_of_waiting(quotas):
    load(quotas, tenant=Limits(tokens=600))
    with pytest.raises(InvalidRequestError) as refused:
        ask(quotas, asked=591)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "tokens_over_limit", "max_tokens")
    ask(quotas, asked=590)


def test_a_budget_ends_at_the_tenants_own_midnight(quotas, wall):
    wall.now = instant("2026-03-10 22:59:50")
    berlin = Principal("t1", "acme", "k1", "Europe/Berlin")
    load(quotas, tenant=Limits(daily=20))
    held = ask(quotas, "a", who=berlin)
    assert (held.total, held.periods.day) == (20, datetime(2026, 3, 10, tzinfo=UTC).toordinal())
    with pytest.raises(QuotaExceededError) as refused:
        ask(quotas, "b", who=berlin)
    error = refused.value
    assert (error.status, error.kind, error.code, error.retry_after) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
        10.0,
    )
    wall.now += 10
    assert ask(quotas, "b", who=berlin).periods.day == held.periods.day + 1
    quotas.settle("a", totals())
    with pytest.raises(QuotaExceededError):
        ask(quotas, "c", who=berlin)


def test_another_zone_holds_from_the_next_day_on_and_no_day_comes_twice(quotas, wall):
    wall.now = instant("2026-03-10 12:00")
    day = quotas.periods("t1", "Asia/Tokyo").day
    assert quotas.periods("t1", "America/Los_Angeles").day == day
    wall.now = instant("2026-03-10 15:00")  # midnight in Tokyo: there, the 11th; in Los Angeles still the 10th
    assert quotas.periods("t1", "America/Los_Angeles").day == day, "the same date again: it goes on counting"
    wall.now = instant("2026-03-11 07:00")
    assert quotas.periods("t1", "America/Los_Angeles").day == day + 1
    wall.now = instant("2026-03-10 01:00")
    assert quotas.periods("t1", "America/Los_Angeles").day == day + 1, "a clock that goes back changes nothing"


def test_a_counted_prompt_gives_back_and_teaches(quotas):
    load(quotas, tenant=Limits(tokens=10_000, daily=10_000))
    size = Size(4_000, 1)
    held = ask(quotas, "a", size=size, asked=None)
    assert held.want.prompt == 1_008
    assert held.total == 2_048, "nobody has counted yet"
    quotas.counted("a", "m", size, ROOM, Accept(wep="w", sid=1, prompt_tokens=2_000, max_tokens=40))
    assert held.total == 2_040
    quotas.leave("a")
    assert ask(quotas, "b", size=size, asked=None).want.prompt == 2_000, "what was learnt of it holds for the next"


def test_what_a_template_adds_is_known_from_the_worker(quotas):
    load(quotas, tenant=Limits(tokens=10_000, strict=True))
    told = Room(2_048, 512, template=30, message=5)
    size = Size(10, 3)
    held = quotas.reserve("a", ME, "m", size, told, asked=100, choices=1)
    assert (held.want.prompt, held.want.prompt_most, held.total) == (42, 58, 158)
    unknown = quotas.reserve("b", ME, "m", size, ROOM, asked=100, choices=1)
    assert (unknown.want.prompt, unknown.want.prompt_most) == (26, 2_048)


def test_what_outputs_usually_take_is_learnt_where_nobody_said(quotas):
    load(quotas, tenant=Limits(tokens=100_000))
    assert ask(quotas, "a", asked=None).holds[0].rate == 10 + 256
    quotas.settle("a", totals(charged=30, generated=30))
    assert 40 <= ask(quotas, "b", asked=None).holds[0].rate <= 10 + 36
    quotas.settle("b", totals(charged=30, generated=3, outcome="worker_failed"))
    assert 40 <= ask(quotas, "c", asked=None).holds[0].rate <= 10 + 36, "half an answer is no habit"


def test_our_failures_cost_nothing_and_the_clients_do(quotas):
    load(quotas, tenant=Limits(requests=10, tokens=1_000))

    def left():
        return [gauge.left for gauge in quotas.gauges(quotas.accounts("t1", "k1", "m"))]

    for outcome, charged, after in (
        ("worker_failed", 0, [10, 1_000]),
        ("worker_failed", 3, [9, 987]),
        ("client_left", 0, [8, 987]),
        ("context_length_exceeded", 0, [7, 987]),
        ("queue_timeout", 0, [7, 987]),
    ):
        ask(quotas, "a")
        quotas.leave("a")
        quotas.settle("a", totals(10 if charged else 0, charged, outcome))
        assert left() == after, outcome


def test_long_prompts_are_bounded(quotas):
    load(quotas, tenant=Limits(long_prompts=1, streams=10))
    ask(quotas, "a", size=Size(0, 0, exact=100))
    with pytest.raises(RateLimitError) as refused:
        ask(quotas, "b", size=Size(0, 0, exact=100))
    assert (refused.value.code, refused.value.retry_after) == ("long_prompts", 1.0)
    ask(quotas, "c", size=Size(0, 0, exact=99))


def test_a_worker_that_counted_names_the_limit_that_was_in_the_way(quotas):
    load(quotas, tenant=Limits(tokens=50), key=Limits(daily=30))
    held = ask(quotas, "a", size=Size(8, 1), asked=None)
    assert (held.total, held.window, held.bound) == (30, 50, Refusal("daily", ("t1", "k1", ""), 30))
    budget = quotas.too_small(ME, held, "budget")
    assert isinstance(budget, QuotaExceededError)
    assert "this key may use 30 tokens a day" in budget.message
    window = quotas.too_small(ME, held, "window")
    assert isinstance(window, InvalidRequestError)
    assert "this tenant may use 50 tokens per minute" in window.message


def test_where_a_tenant_stands(quotas, clock, wall):
    load(quotas, tenant=Limits(tokens=1_000, daily=500, streams=9), model=Limits(requests=5))
    quotas.reserve("x", Principal("t2", "other", "k9"), "m", TEN, ROOM, asked=1, choices=1)
    ask(quotas, "a", asked=20)
    ask(quotas, "b", asked=20)
    quotas.leave("a")
    quotas.settle("a", totals(10, 15))
    whole, *rest = quotas.standings("t1", "UTC")
    assert whole == quotas.standing("t1", "UTC")
    assert (whole.key_id, whole.model, whole.limits.daily, whole.requests) == ("", "", 500, None)
    assert whole.tokens == Gauge(1_000, 945, 3_300)
    assert (whole.streams, whole.day_used, whole.day_held, whole.month_used) == (1, 25, 30, 25)
    assert (whole.day_ends, whole.month_ends) == (
        instant("2026-03-11 00:00") * 1000,
        instant("2026-04-01 00:00") * 1000,
    )
    assert [(one.key_id, one.model) for one in rest] == [("", "m"), ("k1", ""), ("k1", "m")]
    assert rest[0].requests == Gauge(5, 3, 24_000)


def test_headers_in_both_tongues():
    assert rate_headers((None, None)) == []
    told = dict(rate_headers((Gauge(60, 59, 1_000), Gauge(1_000, 744, 15_360))))
    assert told == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"744",
        b"x-ratelimit-reset-tokens": b"15.36s",
        b"ratelimit-policy": b'"requests";q=60;w=60, "tokens";q=1000;w=60',
        b"ratelimit": b'"requests";r=59;t=1, "tokens";r=744;t=16',
    }


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (17, "17ms"),
        (1_000, "1s"),
        (1_500, "1.5s"),
        (60_000, "1m0s"),
        (360_010, "6m0.01s"),
        (59_999, "59.999s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(ms, text):
    assert duration(ms) == text
