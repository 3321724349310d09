"""Usage: added up by whatever one asks for, and request by request."""

from datetime import date, timedelta
from typing import Any, Final, cast

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from gateway.admin.lists import cursor, place
from gateway.core.daily import Sums
from gateway.dashboard.asking import said, with_query
from gateway.dashboard.pages import Asked, page
from gateway.store.store import Store
from gateway.store.usage_report import DIMENSIONS, Dimension, Question
from shared.errors import InvalidRequestError

AT_ONCE: Final = 200
_REQUESTS: Final = 100
_USUAL_DAYS: Final = 30
_DAY_MS: Final = 86_400_000


class Filters(msgspec.Struct, frozen=True):
    """What the address asks for."""

    by: tuple[Dimension, ...]
    first: date
    last: date
    tenant: str
    key: str
    model: str

    @property
    def query(self) -> dict[str, Any]:
        """The same as the operators' API takes it."""
        told = {"from": self.first, "to": self.last, "tenant": self.tenant, "key": self.key, "model": self.model}
        return {name: str(value) for name, value in told.items() if value}


def usage_routes(store: Store) -> list[HTTPRouteHandler]:
    """Two pages."""

    @get("/usage", include_in_schema=False)
    async def usage(request: Asked) -> Template:
        """Sums, as a table."""
        filters = _filters(request, store.now_ms)
        question = await _question(store, filters)
        begun = place(said(request, "after") or None, *(int if dimension == "day" else str for dimension in filters.by))
        found = await store.usage.report(question, after=begun, most=AT_ONCE)
        whole = await store.usage.report(msgspec.structs.replace(question, by=()))
        by = "".join(f"&by={dimension}" for dimension in filters.by)
        address = with_query("/usage", **filters.query) + by
        return page(
            request,
            "usage.html",
            store.now_ms,
            filters=filters,
            dimensions=DIMENSIONS,
            groups=found.groups,
            total=whole.groups[0] if whole.groups else Sums(),
            most=max((group.prompt + group.charged for group in found.groups), default=0),
            more="" if found.after is None else f"{address}&after={cursor(found.after)}",
            paged=begun is not None,
            csv=with_query("/admin/v1/usage.csv", **filters.query) + by,
        )

    @get("/usage/requests", include_in_schema=False)
    async def requests(request: Asked) -> Template:
        """One by one, as long as their rows are kept."""
        tenant = said(request, "tenant", 63)
        begun = place(said(request, "after") or None, int, str)
        found = await store.pages.requests(tenant or None, after=begun, most=_REQUESTS)
        more = "" if found.after is None else with_query("/usage/requests", tenant=tenant, after=cursor(found.after))
        return page(
            request,
            "requests.html",
            store.now_ms,
            requests=found.rows,
            names={row.id: row.name for row in await store.tenants.all()},
            tenant=tenant,
            more=more,
            paged=begun is not None,
        )

    return [usage, requests]


def _filters(request: Asked, now_ms: int) -> Filters:
    """Raises InvalidRequestError for what cannot be meant."""
    chosen = [one for one in request.query_params.getall("by", []) if one]
    unknown = [one for one in chosen if one not in DIMENSIONS]
    if unknown:
        raise InvalidRequestError(f"Usage is added up by {', '.join(DIMENSIONS)}; not by {unknown[0]!r}.", param="by")
    today = date.fromordinal(date(1970, 1, 1).toordinal() + now_ms // _DAY_MS)
    return Filters(
        cast("tuple[Dimension, ...]", tuple(dict.fromkeys(chosen))) or ("tenant",),
        _day(said(request, "from"), today - timedelta(days=_USUAL_DAYS - 1)),
        _day(said(request, "to"), today + timedelta(days=1)),  # east of Greenwich it is tomorrow already
        said(request, "tenant", 63),
        said(request, "key", 63),
        said(request, "model", 255),
    )


def _day(text: str, otherwise: date) -> date:
    if not text:
        return otherwise
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(f"{text!r} is no day such as 2027-01-31.") from None


async def _question(store: Store, filters: Filters) -> Question:
    tenant = (await store.tenants.one(filters.tenant)).id if filters.tenant else None
    key = (await store.keys.one(filters.key, tenant=tenant)).id if filters.key else None
    days = filters.first.toordinal(), filters.last.toordinal()
    return Question(filters.by, tenant, key, filters.model or None, *days)
