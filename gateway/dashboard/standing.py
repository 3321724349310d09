"""Where tenants stand, as rows of tables: used against limit, and in one word how they are."""

from collections.abc import Iterable, Mapping

import msgspec

from gateway.context import House
from gateway.core.accounts import Gauge, Limits
from gateway.services.quotas import Standing
from gateway.store.rows import QuotaRow, TenantRow

_MINUTE = 60
_NEARLY = 0.9


class Use(msgspec.Struct, frozen=True):
    """So much of a limit; 0 is no limit."""

    used: int
    limit: int

    @property
    def full(self) -> bool:
        """Nothing is left."""
        return bool(self.limit) and self.used >= self.limit

    @property
    def nearly(self) -> bool:
        """Little is left."""
        return bool(self.limit) and self.used >= _NEARLY * self.limit


class State(msgspec.Struct, frozen=True):
    """In a word, and how grave that is."""

    word: str
    grade: str


class TenantLine(msgspec.Struct, frozen=True):
    """A row of the table of tenants. Tokens; `streams` in flight."""

    name: str
    state: State
    streams: Use
    minute: Use
    today: Use
    month: Use


class AccountLine(msgspec.Struct, frozen=True):
    """One of a tenant's accounts: whose, the address of its limits, and what is used of them."""

    what: str
    key: str
    model: str
    own: bool
    requests: Use
    minute: Use
    streams: Use
    long_prompts: Use
    today: Use
    month: Use
    strict: bool


def tenant_lines(house: House, rows: Iterable[TenantRow]) -> list[TenantLine]:
    """Where these tenants stand at this gateway."""
    return [_tenant_line(house, row) for row in rows]


def _tenant_line(house: House, row: TenantRow) -> TenantLine:
    standing = house.quotas.standing(row.id, row.zone)
    today = Use(standing.day_used + standing.day_held, standing.limits.daily)
    month = Use(standing.month_used + standing.month_held, standing.limits.monthly)
    streams = Use(standing.streams, standing.limits.streams)
    minute = _of_window(standing.tokens)
    return TenantLine(row.name, _state(house, row, [today, month]), streams, minute, today, month)


def _state(house: House, row: TenantRow, budgets: list[Use]) -> State:
    pulse = house.pulse.pulse
    tracks = pulse.tenants.get(row.id)
    if row.disabled_at is not None:
        return State("shut out", "page")
    if any(budget.full for budget in budgets):
        return State("used up", "page")
    if tracks is not None and any(tracks.limited.recent(pulse.second, _MINUTE)):
        return State("at its limit", "warn")
    if any(budget.nearly for budget in budgets):
        return State("nearly used up", "warn")
    if tracks is not None and any(tracks.tokens.recent(pulse.second, _MINUTE)):
        return State("active", "ok")
    return State("quiet", "none")


def account_lines(
    standings: Iterable[Standing], names: Mapping[str, str], rows: Iterable[QuotaRow]
) -> list[AccountLine]:
    """A tenant's accounts, itself first; `names` are those of its keys by id, `rows` the limits that somebody set."""
    own = {(row.key_id, row.model) for row in rows}
    return [_account_line(standing, names, own) for standing in standings]


def _account_line(standing: Standing, names: Mapping[str, str], own: set[tuple[str, str]]) -> AccountLine:
    limits = standing.limits
    key = standing.key_id and f"key {names.get(standing.key_id, standing.key_id[:8])}"
    model = standing.model and f"model {standing.model}"
    return AccountLine(
        what=", ".join(part for part in (key, model) if part) or "all together",
        key=standing.key_id,
        model=standing.model,
        own=(standing.key_id, standing.model) in own,
        requests=_of_window(standing.requests),
        minute=_of_window(standing.tokens),
        streams=Use(standing.streams, limits.streams),
        long_prompts=Use(standing.long_prompts, limits.long_prompts),
        today=Use(standing.day_used + standing.day_held, limits.daily),
        month=Use(standing.month_used + standing.month_held, limits.monthly),
        strict=limits.strict,
    )


def _of_window(gauge: Gauge | None) -> Use:
    return Use(0, 0) if gauge is None else Use(gauge.limit - gauge.left, gauge.limit)


FIELDS = (
    ("requests", "Requests a minute"),
    ("tokens", "Tokens a minute"),
    ("streams", "Streams at once"),
    ("long_prompts", "Long prompts at once"),
    ("daily", "Tokens a day"),
    ("monthly", "Tokens a month"),
)
"""Limits and what people call them."""


def effects(whose: str, before: Limits, after: Limits, now: Standing | None) -> tuple[str, ...]:
    """What a change of limits will do, in sentences; `now` is where the account stands, if it is known."""
    found = [f"It holds for {whose} at every gateway within a second. Answers that run go on to their end."]
    if now is not None:
        found += _squeezed(whose, after, now)
    if before.strict != after.strict:
        found.append(
            "From then on a request takes the most that it may need out of the window: it never goes into debt."
            if after.strict
            else "From then on a request takes what it will likely need out of the window, and may go into debt."
        )
    lifted = [label.lower() for name, label in FIELDS if getattr(before, name) and not getattr(after, name)]
    if lifted:
        found.append(f"No limit any more: {', '.join(lifted)}.")
    return tuple(found)


def _squeezed(whose: str, after: Limits, now: Standing) -> list[str]:
    found = []
    if after.streams and now.streams > after.streams:
        found.append(
            f"{now.streams} requests run now: all of them go on, and {whose} gets new ones in when fewer than "
            f"{after.streams} are left."
        )
    for used, limit, when in (
        (now.day_used, after.daily, "today; until its next day"),
        (now.month_used, after.monthly, "this month; until the next one"),
    ):
        if limit and used >= limit:
            found.append(f"{whose} has used {used:,} tokens {when} every request will be refused.")
    if after.tokens and now.tokens is not None and now.tokens.limit - now.tokens.left >= after.tokens:
        found.append("More than the new limit was used in the last minute: new requests are refused for a moment.")
    return found
