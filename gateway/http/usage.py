"""`GET /v1/usage`: what the tenant behind the key has used, in days of its own calendar."""

from collections.abc import Iterable
from datetime import date
from typing import Any, Final

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from gateway.context import House
from gateway.core.accounts import Gauge
from gateway.core.daily import Sums
from gateway.http.stream import AsgiExchange
from gateway.services.keyring import Principal
from gateway.services.quotas import Standing
from gateway.steps.authenticate import identify
from gateway.store.usage_report import Group, Page

DAYS: Final = 30


def usage_route(house: House) -> HTTPRouteHandler:
    """The route, over one house."""

    @get("/v1/usage")
    async def own_usage(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The tenant's own usage (today, this month, 30 days by day and model), its limits and what is left of them."""
        principal = identify(house, AsgiExchange(request.scope, request.receive, request.send), "usage")
        today = date.fromordinal(house.quotas.periods(principal.tenant_id, principal.zone).day)
        first = min(today.toordinal() - DAYS + 1, today.replace(day=1).toordinal())
        by_day, by_model = await house.own_usage.of(principal.tenant_id, first)
        standings = house.quotas.standings(principal.tenant_id, principal.zone)
        own = [limits(one) for one in standings if one.key_id in {"", principal.key_id}]
        body = msgspec.json.encode({**shown(principal, today, by_day, by_model), "limits": own})
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return own_usage


def shown(principal: Principal, today: date, by_day: Page, by_model: Page) -> dict[str, Any]:
    """The answer. Days without usage are left out; the newest comes first. Not `complete`: models are missing in it."""
    days = {group.day: group for group in by_day.groups if group.day is not None}
    month = (group for day, group in days.items() if (day.year, day.month) == (today.year, today.month))
    return {
        "object": "usage",
        "tenant": {"id": principal.tenant_id, "name": principal.tenant_name},
        "time_zone": principal.zone,
        "today": {"date": today, **_sums(group for day, group in days.items() if day == today)},
        "month": {"month": f"{today:%Y-%m}", **_sums(month)},
        "complete": by_model.after is None,
        "days": [
            {"date": day, **_sums([days[day]]), "models": _models(by_model, day)}
            for day in sorted(days, reverse=True)
            if day.toordinal() > today.toordinal() - DAYS
        ],
    }


def limits(standing: Standing) -> dict[str, Any]:
    """What an account may use and has left. `limit` is null where there is none; what was used is counted all the same.

    `held` is what running requests may still need; times are milliseconds since 1970.
    """
    allowed = standing.limits
    return {
        "scope": "key" if standing.key_id else "tenant",
        "model": standing.model or None,
        "requests_per_minute": _window(standing.requests),
        "tokens_per_minute": _window(standing.tokens),
        "strict": allowed.strict,
        "streams": {"limit": allowed.streams or None, "used": standing.streams},
        "long_prompts": {"limit": allowed.long_prompts or None, "used": standing.long_prompts},
        "daily_tokens": _budget(allowed.daily, standing.day_used, standing.day_held, standing.day_ends),
        "monthly_tokens": _budget(allowed.monthly, standing.month_used, standing.month_held, standing.month_ends),
    }


def _window(gauge: Gauge | None) -> dict[str, int] | None:
    return None if gauge is None else {"limit": gauge.limit, "remaining": gauge.left, "reset_ms": gauge.reset_ms}


def _budget(limit: int, used: int, held: int, ends: int) -> dict[str, int | None]:
    left = max(0, limit - used - held) if limit else None
    return {"limit": limit or None, "used": used, "held": held, "remaining": left, "resets_at": ends}


def _models(by_model: Page, day: date) -> list[dict[str, Any]]:
    return [{"model": group.model, **_sums([group])} for group in by_model.groups if group.day == day]


def _sums(groups: Iterable[Group]) -> dict[str, Any]:
    """As clients know them from answers: `completion_tokens` are those of answers that are paid for."""
    total = Sums()
    for group in groups:
        total = total.plus(group)
    return {
        "requests": total.requests,
        "failed_requests": total.failed,
        "prompt_tokens": total.prompt,
        "cached_tokens": total.cached,
        "completion_tokens": total.charged,
        "total_tokens": total.prompt + total.charged,
        "device_seconds": round(total.device_seconds, 3),
    }
