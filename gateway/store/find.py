"""Rows of tenants, keys and quotas, found by what people call them. Every function runs in its caller's transaction."""

from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.accounts import Limits
from gateway.store import schema
from gateway.store.rows import KeyRow, QuotaRow, TenantRow
from shared.errors import UnknownRecordError

TENANT: Final = select(
    schema.tenants.c.id,
    schema.tenants.c.name,
    schema.tenants.c.created_at,
    schema.tenants.c.disabled_at,
    schema.tenants.c.zone,
    schema.tenants.c.version,
)
"""Every tenant as a `TenantRow`."""
KEY: Final = select(
    schema.keys.c.id,
    schema.keys.c.tenant_id,
    schema.tenants.c.name.label("tenant_name"),
    schema.keys.c.name,
    schema.keys.c.display,
    schema.keys.c.created_at,
    schema.keys.c.expires_at,
    schema.keys.c.revoked_at,
    schema.keys.c.scopes,
    schema.keys.c.models,
    schema.keys.c.networks,
    schema.keys.c.last_used_at,
    schema.keys.c.replaced_by,
    schema.keys.c.version,
).join_from(schema.keys, schema.tenants)
"""Every key, for `key_row`."""
QUOTA: Final = select(schema.quotas)
"""Every row of limits, for `quota_row`."""

_TEXTS = msgspec.json.Decoder(tuple[str, ...])


def texts(column: str | None) -> tuple[str, ...] | None:
    """A list of text, as the tables keep it."""
    return None if column is None else _TEXTS.decode(column)


def key_row(row: Any) -> KeyRow:
    """A row of `KEY`."""
    found = row._asdict()
    return KeyRow(
        **found
        | {"scopes": texts(found["scopes"]), "models": texts(found["models"]), "networks": texts(found["networks"])}
    )


def quota_row(row: Any) -> QuotaRow:
    """A row of `QUOTA`."""
    found = row._asdict()
    limits = Limits(**{name: found.pop(name) for name in Limits.__struct_fields__})
    return QuotaRow(limits=limits, **found)


async def one_tenant(connection: AsyncConnection, tenant: str) -> TenantRow:
    """The tenant of that name or id. Raises UnknownRecordError if there is none."""
    named = (schema.tenants.c.name == tenant) | (schema.tenants.c.id == tenant)
    rows = [TenantRow(*row) for row in await connection.execute(TENANT.where(named))]
    # An id is a valid name: whoever names a tenant like another's id gets what the name says.
    rows.sort(key=lambda row: row.name != tenant)
    if not rows:
        raise UnknownRecordError(f"there is no tenant {tenant!r}")
    return rows[0]


async def _owners(connection: AsyncConnection, key: str) -> list[str]:
    """The tenants that have a key of this name: those of keys in force, if there are any. None for a key's id."""
    if (await connection.execute(select(schema.keys.c.id).where(schema.keys.c.id == key))).first() is not None:
        return []
    rows = [key_row(row) for row in await connection.execute(KEY.where(schema.keys.c.name == key))]
    live = [row for row in rows if row.revoked_at is None]
    return sorted({row.tenant_name for row in live or rows})


async def one_key(connection: AsyncConnection, key: str, tenant: str | None) -> KeyRow:
    """The key of that id or name, of `tenant` if given: the one in force, else the newest.

    Raises:
        UnknownRecordError: If there is none, or several tenants have one of that name and none was given.
    """
    which: ColumnElement[bool] = schema.keys.c.id == key
    if tenant is None and (owners := await _owners(connection, key)):
        if len(owners) > 1:
            raise UnknownRecordError(
                f"several tenants have a key {key!r} ({', '.join(owners)}): --tenant NAME says which, or give its id"
            )
        tenant = owners[0]
    if tenant is not None:
        owner = await one_tenant(connection, tenant)
        which = and_(schema.keys.c.tenant_id == owner.id, (schema.keys.c.name == key) | (schema.keys.c.id == key))
    newest = (
        schema.keys.c.revoked_at.is_(None).desc(),
        schema.keys.c.replaced_by.is_(None).desc(),
        schema.keys.c.created_at.desc(),
    )
    row = (await connection.execute(KEY.where(which).order_by(*newest).limit(1))).first()
    if row is None:
        raise UnknownRecordError(f"there is no key {key!r}" + (f" of tenant {tenant}" if tenant else ""))
    return key_row(row)
