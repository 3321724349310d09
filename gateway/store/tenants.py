"""Tenants: every question and every change, each in one transaction."""

import re
import uuid
import zoneinfo

from msgspec import UNSET, UnsetType
from sqlalchemy import insert, update

from gateway.core.accounts import Limits
from gateway.store import schema
from gateway.store.database import Change, Database
from gateway.store.find import TENANT, one_tenant
from gateway.store.quotas import write_limits
from gateway.store.rows import Actor, TenantRow
from shared.errors import InvalidRecordError, StaleRecordError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class TenantTable:
    """Every method raises `StoreError` when the database cannot be used. Tenants go by name or id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, name: str, *, by: Actor, zone: str = "UTC", limits: Limits | None = None) -> TenantRow:
        """Add a tenant.

        Raises:
            InvalidRecordError: If the name is not `[a-z0-9][a-z0-9_-]{0,62}`, there is no such zone, or a limit is bad.
            ConflictError: If there is one of that name.
        """
        check_name("tenant", name)
        check_zone(zone)
        conflict = f"there is a tenant named {name} already"
        async with self._database.change(by, "tenant.create", conflict=conflict) as change:
            tenant = TenantRow(str(uuid.uuid4()), name, change.now, None, zone, 1)
            await change.connection.execute(
                insert(schema.tenants).values(id=tenant.id, name=name, created_at=tenant.created_at, zone=zone)
            )
            await change.record("tenant", tenant.id, name, None, tenant)
            if limits is not None:
                await write_limits(change, tenant, None, "", limits)
        return tenant

    async def update(
        self,
        tenant: str,
        *,
        by: Actor,
        version: int | None = None,
        zone: str | UnsetType = UNSET,
        disabled: bool | UnsetType = UNSET,
    ) -> TenantRow:
        """Change what is given. `version`, if given, must be the row's.

        Raises:
            InvalidRecordError: If nothing is given, or there is no such zone.
            UnknownRecordError: If there is no such tenant.
            StaleRecordError: If somebody changed it since.
        """
        if zone is UNSET and disabled is UNSET:
            raise InvalidRecordError("there is nothing to change")
        if not isinstance(zone, UnsetType):
            check_zone(zone)
        async with self._database.change(by, "tenant.update") as change:
            before = await one_tenant(change.connection, tenant)
            values: dict[str, object] = {} if zone is UNSET else {"zone": zone}
            if disabled is not UNSET:
                values["disabled_at"] = (before.disabled_at or change.now) if disabled else None
            return await _changed(change, before, version, **values)

    async def set_disabled(self, tenant: str, *, disabled: bool, by: Actor, version: int | None = None) -> TenantRow:
        """Shut all of a tenant's keys out, or let them in again. `version`, if given, must be the row's.

        Raises:
            UnknownRecordError: If there is no such tenant.
            StaleRecordError: If somebody changed it since.
        """
        async with self._database.change(by, "tenant.disable" if disabled else "tenant.enable") as change:
            before = await one_tenant(change.connection, tenant)
            at = (before.disabled_at or change.now) if disabled else None
            return await _changed(change, before, version, disabled_at=at)

    async def set_zone(self, tenant: str, zone: str, *, by: Actor, version: int | None = None) -> TenantRow:
        """Give a tenant another calendar: its budgets go by it from their next period on.

        Raises:
            InvalidRecordError: If there is no such zone.
            UnknownRecordError: If there is no such tenant.
            StaleRecordError: If somebody changed it since.
        """
        check_zone(zone)
        async with self._database.change(by, "tenant.zone") as change:
            return await _changed(change, await one_tenant(change.connection, tenant), version, zone=zone)

    async def one(self, tenant: str) -> TenantRow:
        """One tenant. Raises UnknownRecordError if there is no such tenant."""
        async with self._database.read() as connection:
            return await one_tenant(connection, tenant)

    async def all(self) -> tuple[TenantRow, ...]:
        """All tenants, by name."""
        async with self._database.read() as connection:
            rows = await connection.execute(TENANT.order_by(schema.tenants.c.name))
            return tuple(TenantRow(*row) for row in rows)


def check_name(what: str, name: str) -> None:
    """Raise InvalidRecordError unless it is a name that stands for itself everywhere."""
    if NAME.fullmatch(name) is None:
        raise InvalidRecordError(
            f"{what} name {name!r} must be 1 to 63 of a-z, 0-9, - and _, and begin with a letter or digit"
        )


def check_zone(zone: str) -> None:
    """Raise InvalidRecordError unless there is a zone of that name."""
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRecordError(f"there is no time zone {zone!r}: give an IANA name such as Europe/Berlin") from None


def check_version(what: str, expected: int | None, actual: int) -> None:
    """Raise StaleRecordError if a change was meant for another version of the row than is there."""
    if expected is not None and expected != actual:
        raise StaleRecordError(f"{what} was changed by somebody else: it is at version {actual}, not {expected}")


async def _changed(change: Change, before: TenantRow, version: int | None, **values: object) -> TenantRow:
    check_version(f"tenant {before.name}", version, before.version)
    await change.connection.execute(
        update(schema.tenants)
        .where(schema.tenants.c.id == before.id)
        .values(**values, version=schema.tenants.c.version + 1)
    )
    after = await one_tenant(change.connection, before.id)
    await change.record("tenant", before.id, before.name, before, after)
    return after
