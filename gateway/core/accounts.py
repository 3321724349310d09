"""One account of quotas: a tenant's, a key's, a model's for either. Its limits, its windows, its budgets. Pure.

Integers only. `now_ms` is milliseconds on the clock of the rate windows; periods of budgets are numbered by the caller,
who knows the tenant's calendar.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from gateway.core.bucket import Bucket

Scope = tuple[str, str, str]
"""Whose account: a tenant; then one of its keys, or ""; then a model, or ""."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one account; 0 is no limit. `requests` and `tokens` per minute, budgets in tokens a period.

    `streams` counts choices in flight, `long_prompts` requests in flight whose prompt is long.
    """

    requests: int = 0
    tokens: int = 0
    streams: int = 0
    long_prompts: int = 0
    daily: int = 0
    monthly: int = 0
    strict: bool = False


UNLIMITED = Limits()


class Periods(msgspec.Struct, frozen=True):
    """Which day and which month it is, in numbers that never decrease."""

    day: int
    month: int


Why = Literal["requests", "tokens", "concurrency", "long_prompts", "daily", "monthly", "too_large"]


class Budget(msgspec.Struct):
    """One period's sums: what is settled, and what running requests may still need."""

    used: int = 0
    reserved: int = 0


class Account(msgspec.Struct):
    """One scope's state. Older periods of a budget stay while something that was reserved in them runs."""

    scope: Scope
    limits: Limits = Limits()
    streams: int = 0
    long_prompts: int = 0
    requests: Bucket | None = None
    tokens: Bucket | None = None
    days: dict[int, Budget] = {}
    months: dict[int, Budget] = {}
    bounded: bool = False
    """It has limits: most accounts only count."""

    def limit(self, now_ms: int, limits: Limits) -> None:
        """Apply `limits` from now on; what was used stays used."""
        self.requests = _resized(self.requests, now_ms, limits.requests)
        self.tokens = _resized(self.tokens, now_ms, limits.tokens)
        self.limits = limits
        self.bounded = limits != UNLIMITED

    def windows(self, tokens: int) -> Iterator[tuple[Why, Bucket, int]]:
        """Its rate windows, each with what a request takes of it that takes so many tokens."""
        if self.requests is not None:
            yield "requests", self.requests, 1
        if self.tokens is not None:
            yield "tokens", self.tokens, tokens

    def left(self, periods: Periods) -> Iterator[tuple[Why, int, int]]:
        """Of each budget with a limit: which, the limit, and what is left of it."""
        if self.limits.daily:
            yield "daily", self.limits.daily, self.limits.daily - _bound(self.days, periods.day)
        if self.limits.monthly:
            yield "monthly", self.limits.monthly, self.limits.monthly - _bound(self.months, periods.month)

    def budgets(self, periods: Periods) -> tuple[Budget, Budget]:
        """The sums of its day and its month."""
        day, month = self.days.get(periods.day), self.months.get(periods.month)
        if day is None:
            day = self.days[periods.day] = Budget()
        if month is None:
            month = self.months[periods.month] = Budget()
        return day, month

    def forget(self) -> None:
        """Drop the periods that are over and settled."""
        if len(self.days) > 1:
            _forget(self.days)
        if len(self.months) > 1:
            _forget(self.months)


class Gauge(msgspec.Struct, frozen=True):
    """One rate window as a client is told of it: what is left, and how long until all of it is there again."""

    limit: int
    left: int
    reset_ms: int


def gauges(now_ms: int, accounts: Sequence[Account]) -> tuple[Gauge | None, Gauge | None]:
    """The request and token windows that a client has least left of; None where none is set."""
    requests = [bucket for account in accounts if (bucket := account.requests) is not None]
    tokens = [bucket for account in accounts if (bucket := account.tokens) is not None]
    return _least(now_ms, requests), _least(now_ms, tokens)


def _least(now_ms: int, buckets: list[Bucket]) -> Gauge | None:
    if not buckets:
        return None
    bucket = min(buckets, key=lambda bucket: bucket.level(now_ms))
    return Gauge(bucket.limit, max(0, bucket.level(now_ms)), bucket.wait_ms(now_ms, bucket.limit))


def _resized(bucket: Bucket | None, now_ms: int, limit: int) -> Bucket | None:
    if not limit:
        return None
    if bucket is None:
        return Bucket.full(limit, now_ms)
    bucket.resize(now_ms, limit)
    return bucket


def _bound(books: dict[int, Budget], period: int) -> int:
    budget = books.get(period)
    return 0 if budget is None else budget.used + budget.reserved


def _forget(books: dict[int, Budget]) -> None:
    newest = max(books)
    for period in [old for old, budget in books.items() if old != newest and not budget.reserved]:
        del books[period]
