"""`/admin/v1/tenants/{tenant}/quota`: the limits of a tenant, of one of its keys, of a model for either."""

from typing import Annotated

import msgspec
from litestar import Response, delete, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta

from gateway.admin.conditional import IfMatch, IfNoneMatch, etag, expected
from gateway.admin.lists import After, Limit, Listing, listing, place
from gateway.admin.problems import CHANGE, READ, documented
from gateway.admin.sessions import Who, needs
from gateway.core.accounts import Limits
from gateway.store.rows import QuotaRow
from gateway.store.store import Store

Bound = Annotated[int, Meta(ge=0, le=2**53, description="0 is no limit.")]
Owner = Annotated[str, PathParameter(max_length=63, description="The tenant's name or id.")]
OfKey = Annotated[
    str | None, QueryParameter(max_length=63, description="Of this key of the tenant, by name or id; else its own.")
]
ForModel = Annotated[str, QueryParameter(max_length=255, description="For this model alone; else for all together.")]


class LimitsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits; 0 sets none. `requests` and `tokens` a minute; `daily`, `monthly` in tokens, by the tenant's calendar."""

    requests: Bound = 0
    tokens: Bound = 0
    streams: Bound = 0
    long_prompts: Bound = 0
    daily: Bound = 0
    monthly: Bound = 0
    strict: bool = False


def limits_of(body: LimitsBody) -> Limits:
    """The same for the store."""
    return Limits(**msgspec.structs.asdict(body))


def quota_routes(store: Store) -> list[HTTPRouteHandler]:
    """Four routes."""

    @get("/tenants/{tenant:str}/quotas", opt=needs("quotas"), responses=documented(*READ, 404), tags=["quotas"])
    async def list_quotas(tenant: Owner, limit: Limit = 50, after: After = None) -> Listing[QuotaRow]:
        """All limits of a tenant: its own, of models for it, of its keys."""
        return listing(await store.pages.quotas(tenant, after=place(after, str, str), most=limit))

    @get("/tenants/{tenant:str}/quota", opt=needs("quotas"), responses=documented(*READ, 404), tags=["quotas"])
    async def get_quota(tenant: Owner, key: OfKey = None, model: ForModel = "") -> Response[QuotaRow]:
        """One set of limits."""
        row = await store.quotas.one(tenant, key=key, model=model)
        return Response(row, headers=etag(row.version))

    @put("/tenants/{tenant:str}/quota", opt=needs("quotas"), responses=documented(*CHANGE), tags=["quotas"])
    async def set_quota(
        tenant: Owner,
        identity: Who,
        data: JSONBody[LimitsBody],
        *,
        key: OfKey = None,
        model: ForModel = "",
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response[QuotaRow]:
        """Set limits, whole: every gateway goes by them within a second."""
        version = expected(if_match, if_none_match)
        row = await store.quotas.set(tenant, limits_of(data), by=identity.actor, key=key, model=model, version=version)
        return Response(row, headers=etag(row.version))

    @delete(
        "/tenants/{tenant:str}/quota",
        status_code=200,
        opt=needs("quotas"),
        responses=documented(*CHANGE),
        tags=["quotas"],
    )
    async def clear_quota(
        tenant: Owner, identity: Who, key: OfKey = None, model: ForModel = "", if_match: IfMatch = None
    ) -> QuotaRow:
        """Remove limits; the answer says what they were."""
        return await store.quotas.clear(tenant, by=identity.actor, key=key, model=model, version=expected(if_match))

    return [list_quotas, get_quota, set_quota, clear_quota]
