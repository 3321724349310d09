"""`/admin/v1/tenants`: who may use the service."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.conditional import IfMatch, etag, expected
from gateway.admin.idempotency import IdempotencyKey, Made, Once
from gateway.admin.limits import LimitsBody, limits_of
from gateway.admin.lists import After, Limit, Listing, listing, place
from gateway.admin.problems import CHANGE, CREATE, READ, documented
from gateway.admin.sessions import Who, needs
from gateway.store.rows import TenantRow
from gateway.store.store import Store

TenantPath = Annotated[str, PathParameter(max_length=63, description="The tenant's name or id.")]
Zone = Annotated[str, Meta(max_length=64, description="IANA name of the calendar that budgets go by.")]


class NewTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to be: `limits` are its own, as under `quota`."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    zone: Zone = "UTC"
    limits: LimitsBody | None = None


class TenantPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; what is left out stays."""

    zone: Zone | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET


def tenant_routes(store: Store, once: Once) -> list[HTTPRouteHandler]:
    """Four routes."""

    @get("/tenants", opt=needs("tenants"), responses=documented(*READ), tags=["tenants"])
    async def list_tenants(
        search: Annotated[str, QueryParameter(max_length=63, description="Part of the name.")] = "",
        limit: Limit = 50,
        after: After = None,
    ) -> Listing[TenantRow]:
        """Tenants, by name."""
        return listing(await store.pages.tenants(search=search, after=place(after, str), most=limit))

    @post("/tenants", opt=needs("tenants"), responses=documented(*CREATE), tags=["tenants"])
    async def create_tenant(
        request: Request[Any, Any, Any],
        identity: Who,
        data: JSONBody[NewTenant],
        idempotency_key: IdempotencyKey = None,
    ) -> Response[TenantRow]:
        """Add a tenant."""

        async def make() -> Made[TenantRow]:
            limits = None if data.limits is None else limits_of(data.limits)
            row = await store.tenants.create(data.name, zone=data.zone, limits=limits, by=identity.actor)
            return Made(row, etag(row.version) | {"location": f"/admin/v1/tenants/{row.id}"})

        return await once(request, identity, idempotency_key, TenantRow, make)

    @get("/tenants/{tenant:str}", opt=needs("tenants"), responses=documented(*READ, 404), tags=["tenants"])
    async def get_tenant(tenant: TenantPath) -> Response[TenantRow]:
        """One tenant."""
        row = await store.tenants.one(tenant)
        return Response(row, headers=etag(row.version))

    @patch("/tenants/{tenant:str}", opt=needs("tenants"), responses=documented(*CHANGE), tags=["tenants"])
    async def change_tenant(
        tenant: TenantPath, identity: Who, data: JSONBody[TenantPatch], if_match: IfMatch = None
    ) -> Response[TenantRow]:
        """Give it another calendar, shut all of its keys out, or let them in again."""
        row = await store.tenants.update(
            tenant, by=identity.actor, version=expected(if_match), zone=data.zone, disabled=data.disabled
        )
        return Response(row, headers=etag(row.version))

    return [list_tenants, create_tenant, get_tenant, change_tenant]
