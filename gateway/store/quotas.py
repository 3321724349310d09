"""Limits of tenants, keys and models: every question and every change, each in one transaction."""

import msgspec
from sqlalchemy import ColumnElement, delete, insert, update

from gateway.core.accounts import Limits
from gateway.store import schema
from gateway.store.database import Change, Database
from gateway.store.find import QUOTA, TENANT, one_key, one_tenant, quota_row
from gateway.store.rows import Actor, KeyRow, QuotaRow, TenantRow
from shared.errors import InvalidRecordError, StaleRecordError, UnknownRecordError

_MOST = 2**53


class QuotaTable:
    """Every method raises `StoreError` when the database cannot be used. Tenants and keys go by name or id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(
        self,
        tenant: str,
        limits: Limits,
        *,
        by: Actor,
        key: str | None = None,
        model: str = "",
        version: int | None = None,
    ) -> QuotaRow:
        """Set the limits of a tenant, of one of its keys, of a model for either. `version` 0: there must be none yet.

        Raises:
            InvalidRecordError: If a limit is negative or beyond 2^53, or the model's name is too long.
            UnknownRecordError: If there is no such tenant or key.
            StaleRecordError: If they are not at `version` any more.
        """
        async with self._database.change(by, "quota.set") as change:
            owner = await one_tenant(change.connection, tenant)
            holder = None if key is None else await one_key(change.connection, key, owner.id)
            return await write_limits(change, owner, holder, model, limits, version)

    async def clear(
        self, tenant: str, *, by: Actor, key: str | None = None, model: str = "", version: int | None = None
    ) -> QuotaRow:
        """Remove those limits, and give back what they were.

        Raises:
            UnknownRecordError: If there is no such tenant or key, or it has no such limits.
            StaleRecordError: If they are not at `version` any more.
        """
        async with self._database.change(by, "quota.clear") as change:
            owner = await one_tenant(change.connection, tenant)
            holder = None if key is None else await one_key(change.connection, key, owner.id)
            before = await _one(change, owner, holder, model)
            if before is None:
                raise UnknownRecordError(f"{_name(owner, holder, model)} has no limits of its own")
            _check_version(before, version)
            await change.connection.execute(delete(schema.quotas).where(_which(owner, holder, model)))
            await change.record("quota", _id(owner, holder, model), _name(owner, holder, model), before, None)
            return before

    async def one(self, tenant: str, *, key: str | None = None, model: str = "") -> QuotaRow:
        """The limits of a tenant, of one of its keys, of a model for either.

        Raises:
            UnknownRecordError: If there is no such tenant or key, or it has no such limits.
        """
        async with self._database.read() as connection:
            owner = await one_tenant(connection, tenant)
            holder = None if key is None else await one_key(connection, key, owner.id)
            row = (await connection.execute(QUOTA.where(_which(owner, holder, model)))).first()
        if row is None:
            raise UnknownRecordError(f"{_name(owner, holder, model)} has no limits of its own")
        return quota_row(row)

    async def of_tenant(self, tenant: str) -> tuple[QuotaRow, ...]:
        """All limits of a tenant: its own, of its keys, of models. Raises UnknownRecordError."""
        async with self._database.read() as connection:
            owner = await one_tenant(connection, tenant)
            rows = await connection.execute(
                QUOTA.where(schema.quotas.c.tenant_id == owner.id).order_by(
                    schema.quotas.c.key_id, schema.quotas.c.model
                )
            )
            return tuple(quota_row(row) for row in rows)


async def write_limits(  # noqa: PLR0917 - the row's place, its value, its version
    change: Change, owner: TenantRow, holder: KeyRow | None, model: str, limits: Limits, version: int | None = None
) -> QuotaRow:
    """Insert or replace one row of limits, within a change."""
    check_limits(limits)
    if len(model) > schema.quotas.c.model.type.length or "\0" in model:  # type: ignore[attr-defined]
        raise InvalidRecordError("a model's name has at most 255 characters")
    before = await _one(change, owner, holder, model)
    _check_version(before, version)
    values = msgspec.structs.asdict(limits) | {"updated_at": change.now}
    if before is None:
        place = {"tenant_id": owner.id, "key_id": holder.id if holder else "", "model": model}
        await change.connection.execute(insert(schema.quotas).values(**place, **values))
    else:
        await change.connection.execute(
            update(schema.quotas)
            .where(_which(owner, holder, model))
            .values(**values, version=schema.quotas.c.version + 1)
        )
    after = await _one(change, owner, holder, model)
    if after is None:
        raise InvalidRecordError("the limits were not kept")
    await change.record("quota", _id(owner, holder, model), _name(owner, holder, model), before, after)
    return after


async def copy_limits(change: Change, old: KeyRow, new: KeyRow) -> None:
    """Give a key the limits that hang on the one it replaces, of models too, within a change."""
    tenants, quotas = schema.tenants.c, schema.quotas.c
    owner = TenantRow(*(await change.connection.execute(TENANT.where(tenants.id == old.tenant_id))).one())
    of_old = QUOTA.where(quotas.tenant_id == owner.id, quotas.key_id == old.id)
    for row in [quota_row(row) for row in await change.connection.execute(of_old)]:
        await write_limits(change, owner, new, row.model, row.limits)


def check_limits(limits: Limits) -> None:
    """Raise InvalidRecordError for a limit that no database would keep."""
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if not 0 <= value <= _MOST:
            raise InvalidRecordError(f"{name} {value} must be from 0, which is no limit, to {_MOST}")


async def _one(change: Change, owner: TenantRow, holder: KeyRow | None, model: str) -> QuotaRow | None:
    row = (await change.connection.execute(QUOTA.where(_which(owner, holder, model)))).first()
    return None if row is None else quota_row(row)


def _which(owner: TenantRow, holder: KeyRow | None, model: str) -> ColumnElement[bool]:
    quotas = schema.quotas.c
    return (quotas.tenant_id == owner.id) & (quotas.key_id == (holder.id if holder else "")) & (quotas.model == model)


def _id(owner: TenantRow, holder: KeyRow | None, model: str) -> str:
    return ":".join((holder.id if holder else owner.id, model)).rstrip(":")[:255]


def _name(owner: TenantRow, holder: KeyRow | None, model: str) -> str:
    return "/".join(part for part in (owner.name, holder.name if holder else "", model) if part)[:255]


def _check_version(before: QuotaRow | None, version: int | None) -> None:
    actual = 0 if before is None else before.version
    if version is not None and version != actual:
        raise StaleRecordError(f"the limits were changed by somebody else: they are at version {actual}, not {version}")
