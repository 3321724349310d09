"""The gateway's quotas: whose accounts a request draws on, what it is told when they do not give, what is left of them.

The arithmetic is `gateway.core.quotas`; this shell knows the clocks, the limits as the store last had them, and the
calendars of the tenants.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec

from gateway.core import calendar
from gateway.core.accounts import Account, Budget, Gauge, Limits, Periods, Why, gauges
from gateway.core.charging import FINISHED, Totals, unused
from gateway.core.guesses import PromptSizes, Usual
from gateway.core.quotas import Quotas, Refusal, Reservation, Want
from gateway.services import quota_answers
from gateway.services.keyring import Principal
from gateway.store.rows import Snapshot
from shared.errors import HttpError
from shared.settings import LimitSettings
from shared.wire import Accept, Close, Open

Place = tuple[str, str, str]
"""Whose account: tenant, key or "", model or ""."""

_NO_LIMITS = Limits()
_NOTHING = Budget()
_SEAMS = 8
"""Tokens more than the parts have that a prompt may have where they meet."""
_USUAL_TEMPLATE = 8
_TEMPLATE = 512
"""Tokens that a chat template of which nothing is known can add to a prompt, and to each of its messages."""


class Size(msgspec.Struct, frozen=True):
    """A prompt as its bytes show it, before anybody has counted its tokens. `exact` where it came as tokens."""

    text_bytes: int
    messages: int
    exact: int | None = None


class Room(msgspec.Struct, frozen=True):
    """What a model gives: tokens of prompt and output together, and of one output.

    `template` is what its chat template makes of one empty message, `message` what each further one adds; 0: unknown.
    """

    context: int
    output: int
    template: int = 0
    message: int = 0


class Standing(msgspec.Struct, frozen=True):
    """Where an account stands now: its limits, and what is used of them.

    `requests` and `tokens` are its windows, `None` where it has none; `day` and `month` are tokens, used and held by
    requests that run, until the UTC instants (ms since 1970) at which the tenant's periods end.
    """

    key_id: str
    model: str
    limits: Limits
    requests: Gauge | None
    tokens: Gauge | None
    streams: int
    long_prompts: int
    day_used: int
    day_held: int
    day_ends: int
    month_used: int
    month_held: int
    month_ends: int


class _Calendar(msgspec.Struct):
    """A tenant's periods now. A change of zone waits for the end of the day."""

    day: calendar.Span
    month: calendar.Span
    ends: float


class Allowances:
    """One per gateway. `clock` never runs backwards, `wall_clock` is seconds since 1970."""

    def __init__(self, limits: LimitSettings, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self.core = Quotas()
        self.usual = Usual()
        self.sizes = PromptSizes()
        self.restored = False
        """The usage of earlier lives has been counted: budgets can be trusted."""
        self._behind_ms = 0
        self._settings = limits
        self._clock = clock
        self._wall_clock = wall_clock
        self._limits: dict[Place, Limits] = {}
        self._limited: dict[str, list[Place]] = {}
        self._accounts: dict[Place, tuple[Account, ...]] = {}
        self._of_tenant: dict[str, dict[Place, Account]] = {}
        self._calendars: dict[str, _Calendar] = {}
        self._tenant = Limits(streams=limits.tenant_streams)

    # ------------------------------------------------------------------------------------------------- the limits

    def load(self, snapshot: Snapshot) -> None:
        """Take over the limits of a snapshot. What was used of the old ones counts against the new ones."""
        self._limits = {(row.tenant_id, row.key_id, row.model): row.limits for row in snapshot.quotas}
        self._limited = {}
        for place in self._limits:
            self._limited.setdefault(place[0], []).append(place)
        self._accounts.clear()

    def limits(self, place: Place) -> Limits:
        """What holds at a place; a tenant without a bound on its streams has the one of the settings."""
        limits = self._limits.get(place, _NO_LIMITS)
        if place[1] or place[2] or limits.streams:
            return limits
        if limits is _NO_LIMITS:
            return self._tenant
        return msgspec.structs.replace(limits, streams=self._tenant.streams)

    def accounts(self, tenant: str, key: str, model: str) -> tuple[Account, ...]:
        """The four accounts of a request: tenant, key, the model for the tenant, the model for the key."""
        found = self._accounts.get((tenant, key, model))
        if found is None:
            now_ms = self.now_ms
            places = ((tenant, "", ""), (tenant, key, ""), (tenant, "", model), (tenant, key, model))
            found = tuple(self.core.account(now_ms, place, self.limits(place)) for place in places)
            self._of_tenant.setdefault(tenant, {}).update(zip(places, found, strict=True))
            self._accounts[tenant, key, model] = found
        return found

    def periods(self, tenant: str, zone: str) -> Periods:
        """The tenant's day and month. Their numbers never decrease, whatever becomes of clock and zone."""
        now = self._wall_clock()
        known = self._calendars.get(tenant)
        if known is None or now >= known.ends:
            known = self._calendars[tenant] = _calendar(zone, now, known)
        return Periods(known.day.id, known.month.id)

    # ------------------------------------------------------------------------------------------------- one request

    def reserve(
        self, request: str, principal: Principal, model: str, size: Size, room: Room, *, asked: int | None, choices: int
    ) -> Reservation:
        """Let a request in. Raises RateLimitError, QuotaExceededError or InvalidRequestError, with rate headers."""
        accounts = self.accounts(principal.tenant_id, principal.key_id, model)
        likely = self._likely(model, size, room)
        want = Want(
            prompt=likely,
            prompt_most=_prompt_most(size, room),
            asked=asked,
            room=room.output,
            usual=self._usual(accounts, principal.tenant_id, model) if asked is None else 0,
            choices=choices,
            context=room.context,
            long=likely >= self._settings.long_prompt_tokens,
        )
        periods = self.periods(principal.tenant_id, principal.zone)
        answer = self.core.reserve(self.now_ms, request, want, periods, accounts)
        if isinstance(answer, Reservation):
            return answer
        raise self.refused(answer, principal, accounts)

    def counted(self, request: str, model: str, size: Size, room: Room, accept: Accept) -> None:
        """A worker has counted the prompt, and said how long an answer can become."""
        if size.exact is None:
            self.sizes.saw(model, size.text_bytes, _template(size, room), accept.prompt_tokens)
        long = accept.prompt_tokens >= self._settings.long_prompt_tokens
        self.core.adjust(self.now_ms, request, accept.prompt_tokens, output=accept.max_tokens, long=long)

    def leave(self, request: str) -> None:
        """Its client has its answer or is gone: its streams are free at once."""
        self.core.leave(request)

    def settle(self, request: str, totals: Totals) -> None:
        """It is over, and pays for what it used, prompt and output."""
        held = self.core.held(request)
        if held is not None and held.window and held.want.asked is None and totals.outcome in FINISHED:
            tenant, _, model = held.holds[-1].account.scope
            self.usual.saw((tenant, model), totals.generated // held.want.choices)
        tokens = totals.prompt + totals.charged
        self.core.settle(self.now_ms, request, tokens, unused=unused(totals.outcome, tokens))

    def standings(self, tenant: str, zone: str) -> list[Standing]:
        """Where a tenant stands: itself first, then its keys and models that have limits or were used today."""
        periods = self.periods(tenant, zone)
        for place in self._limited.get(tenant, ()):
            self.accounts(*place)
        self.accounts(tenant, "", "")
        return [self._standing(account, periods) for _, account in sorted(self._of_tenant[tenant].items())]

    def standing(self, tenant: str, zone: str) -> Standing:
        """Where a tenant as a whole stands."""
        return self._standing(self.accounts(tenant, "", "")[0], self.periods(tenant, zone))

    def _standing(self, account: Account, periods: Periods) -> Standing:
        tenant, key, model = account.scope
        day, month = account.days.get(periods.day, _NOTHING), account.months.get(periods.month, _NOTHING)
        ends = self._calendars[tenant]
        requests, tokens = self.gauges((account,))
        return Standing(
            key_id=key,
            model=model,
            limits=account.limits,
            requests=requests,
            tokens=tokens,
            streams=account.streams,
            long_prompts=account.long_prompts,
            day_used=day.used,
            day_held=day.reserved,
            day_ends=round(ends.day.end.timestamp() * 1000),
            month_used=month.used,
            month_held=month.reserved,
            month_ends=round(ends.month.end.timestamp() * 1000),
        )

    # ------------------------------------------------------------------------------------------------- earlier lives

    def restoring(self, age_s: float) -> None:
        """From now on it is that long ago for the rate windows; 0 ends it."""
        self._behind_ms = round(age_s * 1000)

    def used_before(self, place: Place, periods: Periods, tokens: int) -> None:
        """Tokens of requests that were over before this process began count in their budgets."""
        for account in self.accounts(*place):
            self.core.used(account, periods, tokens)

    def window_before(self, close: Close) -> None:
        """A request closed then, and took of the rate windows."""
        tokens = close.prompt + close.charged
        if unused(close.outcome, tokens):
            return
        for account in self.accounts(close.tenant, close.key, close.model):
            for _, bucket, amount in account.windows(tokens):
                bucket.take(self.now_ms, amount)

    def open_before(self, request: str, record: Open, periods: Periods) -> None:
        """A request of an earlier process is open: what it reserved stays reserved until it closes."""
        accounts = self.accounts(record.tenant, record.key, record.model)
        self.core.restore(request, record.reserved, periods, accounts)

    def close(self, close: Close) -> None:
        """A record says what a request used. Those of this process have settled already: nothing."""
        self.core.settle(self.now_ms, close.aid, close.prompt + close.charged)

    # ------------------------------------------------------------------------------------------------- what is told

    def refused(self, refusal: Refusal, principal: Principal, accounts: tuple[Account, ...]) -> HttpError:
        """A refusal as the client is told of it."""
        wait_s = self._until_next(refusal.why, principal) if refusal.why in {"daily", "monthly"} else 0.0
        error = quota_answers.refused(refusal, wait_s)
        error.headers = quota_answers.rate_headers(self.gauges(accounts))
        return error

    def too_small(self, principal: Principal, held: Reservation, why: str) -> HttpError:
        """A worker counted the prompt: what a reservation has left for it does not even hold one token of answer.

        `why` is `window` for a request that can never fit, else `budget`.
        """
        accounts = tuple(hold.account for hold in held.holds)
        bound = held.bound
        if why == "window" or bound is None:
            scope = next((a.scope for a in accounts if a.limits.tokens == held.window), ("", "", ""))
            bound = Refusal("too_large", scope, held.window)
        return self.refused(bound, principal, accounts)

    def headers(self, held: Reservation) -> list[tuple[bytes, bytes]]:
        """What the client of a request that was let in is told of its windows."""
        return quota_answers.rate_headers(self.gauges(tuple(hold.account for hold in held.holds)))

    def gauges(self, accounts: tuple[Account, ...]) -> tuple[Gauge | None, Gauge | None]:
        """What is left of the windows for requests and tokens."""
        return gauges(self.now_ms, accounts)

    @property
    def now_ms(self) -> int:
        """The clock of the rate windows."""
        return int(self._clock() * 1000) - self._behind_ms

    def streams(self) -> int:
        """Streams that all tenants hold now."""
        return sum(account.streams for account in self.core.accounts() if account.scope[1:] == ("", ""))

    def _usual(self, accounts: tuple[Account, ...], tenant: str, model: str) -> int:
        """What an output usually takes; nobody asks where no window is set."""
        return self.usual.tokens((tenant, model)) if any(account.tokens for account in accounts) else 0

    def _likely(self, model: str, size: Size, room: Room) -> int:
        if size.exact is not None:
            return size.exact
        likely = self.sizes.likely(model, size.text_bytes, _template(size, room))
        return max(1, min(likely, _prompt_most(size, room), room.context - 1))

    def _until_next(self, which: Why, principal: Principal) -> float:
        """Seconds until the tenant's next day or month begins."""
        self.periods(principal.tenant_id, principal.zone)
        known = self._calendars[principal.tenant_id]
        end = known.day.end if which == "daily" else known.month.end
        return max(1.0, end.timestamp() - self._wall_clock())


def _prompt_most(size: Size, room: Room) -> int:
    """What a prompt cannot exceed: no token is less than a byte, and a template adds what it adds to each message."""
    if size.exact is not None:
        return size.exact
    template = _template(size, room) + _SEAMS if room.template else _TEMPLATE * (1 + size.messages)
    return min(room.context, size.text_bytes + template)


def _template(size: Size, room: Room) -> int:
    """What a chat template probably adds."""
    if not size.messages:
        return 0
    return room.template + room.message * (size.messages - 1) if room.template else _USUAL_TEMPLATE * size.messages


def _calendar(zone: str, now: float, before: _Calendar | None) -> _Calendar:
    at, place = datetime.fromtimestamp(now, UTC), ZoneInfo(zone)
    day, month = calendar.day(place, at), calendar.month(place, at)
    if before is not None:  # towards the west a date can come again: it goes on counting
        day = msgspec.structs.replace(day, id=max(day.id, before.day.id))
        month = msgspec.structs.replace(month, id=max(month.id, before.month.id))
    return _Calendar(day, month, day.end.timestamp())
