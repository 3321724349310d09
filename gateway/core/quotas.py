"""What a request may use, and what it has used: rate windows, budgets and streams of its tenant, key and model. Pure.

A request reserves before it runs and settles when it is over, once, whatever happened in between:

- Rate windows reserve what is likely (the prompt, and the output that was asked for or that is usual) and settle with
  what was charged; what exceeds the reservation is debt that later requests wait for. A strict account reserves the
  most that may come, and never owes.
- Budgets always reserve the most that may come, so they are never exceeded.
- Streams are counted while the request runs.

The most that may come is `Reservation.total`: prompt and output of all choices together, no more than any window holds
and any budget has left. A gateway does not count tokens before a worker does: it works with a likely prompt and one
that is certain not to be exceeded, and whoever does count holds the request to its total (`adjust` says what came out).

Integers only. `now_ms` is milliseconds on the clock of the rate windows; periods of budgets are numbered by the caller,
who knows the tenant's calendar. A reservation settles in the periods in which it was made.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Literal

import msgspec

from gateway.core.bucket import Bucket

Scope = Hashable
"""Whose account: a tenant, one of its keys, a model for a tenant."""

Why = Literal["requests", "tokens", "concurrency", "daily", "monthly", "too_large"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one account; 0 is no limit. `requests` and `tokens` per minute, budgets in tokens a period."""

    requests: int = 0
    tokens: int = 0
    streams: int = 0
    long_prompts: int = 0
    daily: int = 0
    monthly: int = 0
    strict: bool = False


class Periods(msgspec.Struct, frozen=True):
    """Which day and which month it is, in numbers that never decrease."""

    day: int
    month: int


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for, in tokens. Its prompt is likely `prompt`, certainly at most `prompt_most`.

    `asked` is its own max_tokens, `room` the most that its model gives for one choice, `usual` what one choice usually
    takes. The prompt counts once, however many `choices` there are.
    """

    prompt: int
    prompt_most: int
    asked: int | None
    room: int
    usual: int
    choices: int = 1

    @property
    def least(self) -> int:
        """What it cannot do without: its prompt, as far as that is known, and a token for each choice."""
        return (self.prompt if self.prompt == self.prompt_most else 1) + self.choices


class Refusal(msgspec.Struct, frozen=True):
    """Why not, by whose limit, and when the same request would be let in if nobody else came.

    `wait_ms` is `None` where waiting is no help: the request is too large, a stream has to end, or a budget has to
    begin anew, which the caller knows the time of.
    """

    why: Why
    scope: Scope
    limit: int
    wait_ms: int | None = None


class Budget(msgspec.Struct):
    """One period's sums: what is settled, and what running requests may still need."""

    used: int = 0
    reserved: int = 0


class Account(msgspec.Struct):
    """One scope's state. Older periods of a budget stay while something that was reserved in them runs."""

    scope: Scope
    limits: Limits = Limits()
    streams: int = 0
    requests: Bucket | None = None
    tokens: Bucket | None = None
    days: dict[int, Budget] = {}
    months: dict[int, Budget] = {}

    def limit(self, now_ms: int, limits: Limits) -> None:
        """Apply `limits` from now on; what was used stays used."""
        self.requests = _resized(self.requests, now_ms, limits.requests)
        self.tokens = _resized(self.tokens, now_ms, limits.tokens)
        self.limits = limits

    def left(self, periods: Periods) -> Iterator[tuple[Why, int, int]]:
        """Of each budget with a limit: which, the limit, and what is left of it."""
        if self.limits.daily:
            yield "daily", self.limits.daily, self.limits.daily - _bound(self.days, periods.day)
        if self.limits.monthly:
            yield "monthly", self.limits.monthly, self.limits.monthly - _bound(self.months, periods.month)

    def books(self, periods: Periods) -> Iterator[tuple[dict[int, Budget], int]]:
        """Its budgets, each with the number of its period."""
        yield self.days, periods.day
        yield self.months, periods.month


class Hold(msgspec.Struct):
    """What one account gave for one reservation; 0 where it had no limit then, of which nothing can go back."""

    account: Account
    request: int
    rate: int


class Reservation(msgspec.Struct):
    """What a request holds: `total` tokens at the most, in every budget of `holds`."""

    want: Want
    total: int
    periods: Periods
    holds: list[Hold]


class Quotas:
    """Every account of one gateway, and what is reserved on them."""

    def __init__(self) -> None:
        self._accounts: dict[Scope, Account] = {}
        self._held: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._held)

    def account(self, now_ms: int, scope: Scope, limits: Limits) -> Account:
        """The account of `scope`, which has these limits from now on."""
        account = self._accounts.get(scope)
        if account is None:
            account = self._accounts[scope] = Account(scope)
        if account.limits != limits:
            account.limit(now_ms, limits)
        return account

    def reserve(
        self, now_ms: int, request: str, want: Want, periods: Periods, accounts: Sequence[Account]
    ) -> Reservation | Refusal:
        """Let `request` in, or say why not and change nothing. All accounts must agree.

        Raises:
            ValueError: `request` is in already.
        """
        if request in self._held:
            raise ValueError(f"{request} has a reservation already")
        total = _total(want, periods, accounts)
        if isinstance(total, Refusal):
            return total
        refusal = _refused(now_ms, want, total, accounts)
        if refusal is not None:
            return refusal
        held = Reservation(want, total, periods, [])
        for account in accounts:
            held.holds.append(_hold(now_ms, account, held))
        self._held[request] = held
        return held

    def adjust(self, now_ms: int, request: str, prompt: int) -> None:
        """Its prompt was counted: `prompt` tokens. Whatever was reserved for more goes back. Unknown: nothing."""
        held = self._held.get(request)
        if held is None:
            return
        held.want = msgspec.structs.replace(held.want, prompt=prompt, prompt_most=prompt)
        less = held.total - min(held.total, _most(held.want))
        held.total -= less
        for hold in held.holds:
            if hold.account.tokens is not None and hold.rate:
                rate = _rate(hold.account, held.want, held.total)
                hold.account.tokens.give(now_ms, hold.rate - rate)
                hold.rate = rate
            for books, period in hold.account.books(held.periods):
                books[period].reserved -= less

    def settle(self, now_ms: int, request: str, charged: int, *, unused: bool = False) -> bool:
        """`request` is over and pays for `charged` tokens. Again, or for one that is unknown: nothing, and False.

        `unused`: it failed by no doing of its own, so that it does not count as a request either.
        """
        held = self._held.pop(request, None)
        if held is None:
            return False
        for hold in held.holds:
            account = hold.account
            account.streams -= held.want.choices
            if account.requests is not None and unused:
                account.requests.give(now_ms, hold.request)
            if account.tokens is not None:
                account.tokens.give(now_ms, hold.rate - charged)
            for books, period in account.books(held.periods):
                books[period].reserved -= held.total
                books[period].used += charged
                _forget(books)
        return True


def _most(want: Want) -> int:
    """All that may come of a request: its longest prompt and its longest output."""
    output = want.room if want.asked is None else min(want.asked, want.room)
    return want.prompt_most + want.choices * output


def _total(want: Want, periods: Periods, accounts: Sequence[Account]) -> int | Refusal:
    """The most that may come and that every account can give at all, however long one waits."""
    total = _most(want)
    explicit = want.least + (0 if want.asked is None else want.choices * (want.asked - 1))
    for account in accounts:
        limits = account.limits
        if limits.tokens:
            if explicit > limits.tokens:
                return Refusal("too_large", account.scope, limits.tokens)
            total = min(total, limits.tokens)
        for why, limit, left in account.left(periods):
            if want.least > left:
                return Refusal(why, account.scope, limit)
            total = min(total, left)
    return total


def _refused(now_ms: int, want: Want, total: int, accounts: Sequence[Account]) -> Refusal | None:
    """Whose limit keeps it out now: of several the one that takes longest, one that no wait helps before all."""
    worst: Refusal | None = None
    for account in accounts:
        limits = account.limits
        if limits.streams and account.streams + want.choices > limits.streams:
            return Refusal("concurrency", account.scope, limits.streams)
        windows: tuple[tuple[Why, Bucket | None, int], ...] = (
            ("requests", account.requests, 1),
            ("tokens", account.tokens, _rate(account, want, total)),
        )
        for why, bucket, amount in windows:
            wait_ms = 0 if bucket is None else bucket.wait_ms(now_ms, amount)
            if bucket is not None and wait_ms > (0 if worst is None else worst.wait_ms or 0):
                worst = Refusal(why, account.scope, bucket.limit, wait_ms)
    return worst


def _rate(account: Account, want: Want, total: int) -> int:
    """What a reservation takes out of an account's token window."""
    if account.limits.strict:
        return total
    output = want.usual if want.asked is None else want.asked
    return min(total, want.prompt + want.choices * min(output, want.room))


def _hold(now_ms: int, account: Account, held: Reservation) -> Hold:
    hold = Hold(account, request=0, rate=0)
    account.streams += held.want.choices
    if account.requests is not None:
        hold.request = 1
        account.requests.take(now_ms, hold.request)
    if account.tokens is not None:
        hold.rate = _rate(account, held.want, held.total)
        account.tokens.take(now_ms, hold.rate)
    for books, period in account.books(held.periods):
        books.setdefault(period, Budget()).reserved += held.total
    return hold


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
    """Drop the periods that are over and settled."""
    if len(books) > 1:
        newest = max(books)
        for period in [old for old, budget in books.items() if old != newest and not budget.reserved]:
            del books[period]
