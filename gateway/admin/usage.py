"""`/admin/v1/usage`: what was used, added up by whatever is asked for, and request by request."""

import itertools
from collections.abc import AsyncIterator, Sequence
from datetime import date
from typing import Annotated, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter
from litestar.response import Stream

from gateway.admin.lists import After, Limit, Listing, cursor, listing, place
from gateway.admin.problems import READ, documented
from gateway.admin.sessions import needs
from gateway.core.daily import SUMS
from gateway.core.usage_csv import lines
from gateway.store.rows import UsageRow
from gateway.store.store import Store
from gateway.store.usage_report import DIMENSIONS, Dimension, Group, Page, Question

_AT_ONCE: Final = 1000

By = Annotated[
    tuple[Dimension, ...],
    QueryParameter(max_items=len(DIMENSIONS), description="What to group by, in order; may be repeated."),
]
First = Annotated[date | None, QueryParameter(name="from", description="From this day of the tenant's calendar on.")]
Last = Annotated[date | None, QueryParameter(name="to", description="Up to this day of it, and with it.")]
OfTenant = Annotated[str | None, QueryParameter(max_length=63, description="Only this tenant's, by name or id.")]
OfKey = Annotated[
    str | None, QueryParameter(max_length=63, description="Only this key's, by id; by name where the tenant is said.")
]
OfModel = Annotated[str | None, QueryParameter(max_length=255, description="Only this model's.")]


def usage_routes(store: Store) -> list[HTTPRouteHandler]:
    """Three routes."""

    async def question(  # noqa: PLR0917 - what is asked, in the order of the address
        by: Sequence[Dimension],
        first: date | None,
        last: date | None,
        tenant: str | None,
        key: str | None,
        model: str | None,
    ) -> Question:
        tenant_id = None if tenant is None else (await store.tenants.one(tenant)).id
        key_id = None if key is None else (await store.keys.one(key, tenant=tenant)).id
        days = (None if day is None else day.toordinal() for day in (first, last))
        return Question(tuple(dict.fromkeys(by)), tenant_id, key_id, model, *days)

    @get("/usage", opt=needs("usage"), responses=documented(*READ, 404), tags=["usage"])
    async def report(
        *,
        by: By = ("tenant",),
        first: First = None,
        last: Last = None,
        tenant: OfTenant = None,
        key: OfKey = None,
        model: OfModel = None,
        limit: Limit = 50,
        after: After = None,
    ) -> Listing[Group]:
        """Sums by tenant, key, model, version, day, or of everything. Days are those of each tenant's calendar."""
        asked = await question(by, first, last, tenant, key, model)
        begun = place(after, *(int if dimension == "day" else str for dimension in asked.by))
        page = await store.usage.report(asked, after=begun, most=limit)
        return Listing(page.groups, None if page.after is None else cursor(page.after))

    @get(
        "/usage.csv",
        opt=needs("usage"),
        responses={
            200: ResponseSpec(str, description="All of it", media_type="text/csv", generate_examples=False),
            **documented(*READ, 404),
        },
        tags=["usage"],
    )
    async def report_csv(
        *,
        by: By = ("tenant",),
        first: First = None,
        last: Last = None,
        tenant: OfTenant = None,
        key: OfKey = None,
        model: OfModel = None,
    ) -> Stream:
        """The same, whole, as CSV that is safe to open in a spreadsheet."""
        asked = await question(by, first, last, tenant, key, model)
        page = await store.usage.report(asked, most=_AT_ONCE)  # what is wrong with the store shows before the 200
        headers = {"content-disposition": 'attachment; filename="usage.csv"'}
        return Stream(_csv(store, asked, page), media_type="text/csv", headers=headers)

    @get("/usage/requests", opt=needs("usage"), responses=documented(*READ, 404), tags=["usage"])
    async def list_requests(tenant: OfTenant = None, limit: Limit = 50, after: After = None) -> Listing[UsageRow]:
        """Requests, newest first, as long as their rows are kept."""
        return listing(await store.pages.requests(tenant, after=place(after, int, str), most=limit))

    return [report, report_csv, list_requests]


async def _csv(store: Store, asked: Question, page: Page) -> AsyncIterator[bytes]:
    columns = [*itertools.chain.from_iterable(_columns(dimension) for dimension in asked.by), *SUMS]
    yield lines([columns]).encode()
    while True:
        yield lines([getattr(group, name) for name in columns] for group in page.groups).encode()
        if page.after is None:
            return
        page = await store.usage.report(asked, after=page.after, most=_AT_ONCE)


def _columns(dimension: Dimension) -> tuple[str, ...]:
    return (f"{dimension}_id", dimension) if dimension in {"tenant", "key"} else (dimension,)
