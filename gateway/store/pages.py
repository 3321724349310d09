"""Lists in pages, for whoever looks through everything: each page begins after the last row of the one before it.

Rows that come or go between two pages are in neither or in one, never in both.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from sqlalchemy import Column, ColumnElement, Select, literal, select, tuple_

from gateway.store import schema
from gateway.store.admins import ADMIN, AdminRow
from gateway.store.database import Database
from gateway.store.find import KEY, QUOTA, TENANT, key_row, one_tenant, quota_row
from gateway.store.rows import KeyRow, QuotaRow, TenantRow, UsageRow
from gateway.store.tokens import TOKEN, TokenRow, token_row

R = TypeVar("R")
Place = tuple[str | int, ...]
"""Where a page ends: what its last row is sorted by."""

_TENANTS: Final = (schema.tenants.c.name,)
_KEYS: Final = (schema.keys.c.created_at, schema.keys.c.id)
_QUOTAS: Final = (schema.quotas.c.key_id, schema.quotas.c.model)
_ADMINS: Final = (schema.admins.c.name,)
_REQUESTS: Final = (schema.usage.c.closed_at, schema.usage.c.id)
USAGE: Final = select(*(schema.usage.c[name] for name in UsageRow.__struct_fields__))
"""Every request that has its row, as a `UsageRow`."""
_TOKENS: Final = (schema.admin_tokens.c.created_at, schema.admin_tokens.c.id)


class Page(msgspec.Struct, Generic[R], frozen=True):
    """Rows in order; `after` is where the next page begins, `None` on the last one."""

    rows: tuple[R, ...]
    after: Place | None


class Pages:
    """Every method raises `StoreError` when the database cannot be used. `most` rows at most come at once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tenants(self, *, search: str, after: Place | None, most: int) -> Page[TenantRow]:
        """Tenants by name, of those whose name holds `search`."""
        query = TENANT.where(schema.tenants.c.name.contains(search, autoescape=True)) if search else TENANT
        return await self._page(query, _TENANTS, after, most, lambda row: TenantRow(*row))

    async def keys(self, tenant: str | None, *, after: Place | None, most: int) -> Page[KeyRow]:
        """All keys, or a tenant's, oldest first. Raises UnknownRecordError if there is no such tenant."""
        query = KEY if tenant is None else KEY.where(schema.keys.c.tenant_id == await self._id_of(tenant))
        return await self._page(query, _KEYS, after, most, key_row)

    async def quotas(self, tenant: str, *, after: Place | None, most: int) -> Page[QuotaRow]:
        """A tenant's limits: its own, of models for it, of its keys. Raises UnknownRecordError."""
        mine = schema.quotas.c.tenant_id == await self._id_of(tenant)
        return await self._page(QUOTA.where(mine), _QUOTAS, after, most, quota_row)

    async def admins(self, *, after: Place | None, most: int) -> Page[AdminRow]:
        """Admins by name."""
        return await self._page(ADMIN, _ADMINS, after, most, lambda row: AdminRow(*row))

    async def tokens(self, *, after: Place | None, most: int) -> Page[TokenRow]:
        """Admin tokens, oldest first, revoked ones included."""
        return await self._page(TOKEN, _TOKENS, after, most, token_row)

    async def requests(self, tenant: str | None, *, after: Place | None, most: int) -> Page[UsageRow]:
        """Requests as they closed, newest first: all, or a tenant's. Raises UnknownRecordError."""
        query = USAGE
        if tenant is not None:
            query = query.where(schema.usage.c.tenant_id == await self._id_of(tenant))
        return await self._page(query, _REQUESTS, after, most, lambda row: UsageRow(*row), newest_first=True)

    async def _id_of(self, tenant: str) -> str:
        async with self._database.read() as connection:
            return (await one_tenant(connection, tenant)).id

    async def _page(
        self,
        query: Select[Any],
        order: Sequence[Column[Any]],
        after: Place | None,
        most: int,
        of: Callable[[Any], R],
        *,
        newest_first: bool = False,
    ) -> Page[R]:
        if after is not None:
            query = query.where(_beyond(order, after, newest_first=newest_first))
        sorting = [column.desc() for column in order] if newest_first else order
        async with self._database.read() as connection:
            found = (await connection.execute(query.order_by(*sorting).limit(most + 1))).all()
        last = found[most - 1] if len(found) > most else None
        place = None if last is None else tuple(getattr(last, column.name) for column in order)
        return Page(tuple(of(row) for row in found[:most]), place)


def _beyond(order: Sequence[Column[Any]], after: Place, *, newest_first: bool) -> ColumnElement[bool]:
    last = tuple_(*(literal(value, column.type) for value, column in zip(after, order, strict=True)))
    return tuple_(*order) < last if newest_first else tuple_(*order) > last
