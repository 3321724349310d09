"""People who may use the admin plane: every question and every change, each in one transaction."""

import uuid
from typing import Final

import msgspec
from sqlalchemy import delete, false, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store import schema
from gateway.store.database import Change, Database
from gateway.store.passwords import Passwords, check_password
from gateway.store.rows import Actor
from gateway.store.tenants import NAME, check_name, check_version
from shared.errors import UnknownRecordError

ADMIN: Final = select(
    schema.admins.c.id,
    schema.admins.c.name,
    schema.admins.c.created_at,
    schema.admins.c.disabled_at,
    schema.admins.c.version,
)
"""Every admin as an `AdminRow`."""


class AdminRow(msgspec.Struct, frozen=True):
    """One of the people who may use the admin plane. Times in ms since 1970."""

    id: str
    name: str
    created_at: int
    disabled_at: int | None
    version: int


class AdminTable:
    """Every method raises `StoreError` when the database cannot be used. Admins go by name or id."""

    def __init__(self, database: Database, passwords: Passwords) -> None:
        self._database = database
        self._passwords = passwords

    async def create(self, name: str, password: str, *, by: Actor) -> AdminRow:
        """Add one.

        Raises:
            InvalidRecordError: If the name is not `[a-z0-9][a-z0-9_-]{0,62}`, or the password is too short or too long.
            ConflictError: If there is one of that name.
        """
        check_name("admin", name)
        check_password(password)
        hashed = await self._passwords.hash(password)
        conflict = f"there is an admin named {name} already"
        async with self._database.change(by, "admin.create", conflict=conflict) as change:
            admin = AdminRow(str(uuid.uuid4()), name, change.now, None, 1)
            await change.connection.execute(
                insert(schema.admins).values(id=admin.id, name=name, password=hashed, created_at=admin.created_at)
            )
            await change.record("admin", admin.id, name, None, admin)
        return admin

    async def set_password(self, admin: str, password: str, *, by: Actor, version: int | None = None) -> AdminRow:
        """Give an admin another password; whoever is logged in with the old one is out.

        Raises:
            InvalidRecordError: If the password is too short or too long.
            UnknownRecordError: If there is no such admin.
            StaleRecordError: If somebody changed it since.
        """
        hashed = await self._passwords.hash(password)
        async with self._database.change(by, "admin.password") as change:
            before = await _one(change.connection, admin)
            return await _changed(change, before, version, password=hashed)

    async def set_disabled(self, admin: str, *, disabled: bool, by: Actor, version: int | None = None) -> AdminRow:
        """Shut an admin out, at once, or let them in again.

        Raises:
            UnknownRecordError: If there is no such admin.
            StaleRecordError: If somebody changed it since.
        """
        async with self._database.change(by, "admin.disable" if disabled else "admin.enable") as change:
            before = await _one(change.connection, admin)
            return await _changed(
                change, before, version, disabled_at=(before.disabled_at or change.now) if disabled else None
            )

    async def verify(self, name: str, password: str) -> AdminRow | None:
        """The admin of that name and password, unless disabled. It takes as long whatever is wrong."""
        found = select(*ADMIN.selected_columns, schema.admins.c.password)
        # A name that nobody can have is not asked for: it may hold what no database takes.
        mine = schema.admins.c.name == name if NAME.fullmatch(name) else false()
        async with self._database.read() as connection:
            row = (await connection.execute(found.where(mine))).first()
        right = await self._passwords.verify(None if row is None else row.password, password)
        if row is None or not right or row.disabled_at is not None:
            return None
        if self._passwords.outdated(row.password):
            await self._rehash(row.id, row.password, password)
        return AdminRow(*row[:-1])

    async def one(self, admin: str) -> AdminRow:
        """One admin. Raises UnknownRecordError if there is no such admin."""
        async with self._database.read() as connection:
            return await _one(connection, admin)

    async def all(self) -> tuple[AdminRow, ...]:
        """All admins, by name."""
        async with self._database.read() as connection:
            return tuple(AdminRow(*row) for row in await connection.execute(ADMIN.order_by(schema.admins.c.name)))

    async def _rehash(self, admin_id: str, kept: str, password: str) -> None:
        """Keep the same password as today's parameters have it: nobody's change, and nothing to record."""
        hashed = await self._passwords.hash(password)
        same = (schema.admins.c.id == admin_id) & (schema.admins.c.password == kept)
        async with self._database.write() as connection:
            await connection.execute(update(schema.admins).where(same).values(password=hashed))


async def _one(connection: AsyncConnection, admin: str) -> AdminRow:
    named = (schema.admins.c.name == admin) | (schema.admins.c.id == admin)
    rows = sorted(
        (AdminRow(*row) for row in await connection.execute(ADMIN.where(named))), key=lambda row: row.name != admin
    )
    if not rows:
        raise UnknownRecordError(f"there is no admin {admin!r}")
    return rows[0]


async def _changed(change: Change, before: AdminRow, version: int | None, **values: object) -> AdminRow:
    check_version(f"admin {before.name}", version, before.version)
    await change.connection.execute(
        update(schema.admins).where(schema.admins.c.id == before.id).values(**values, version=before.version + 1)
    )
    # Whatever changed, whoever is logged in under the old terms logs in anew.
    await change.connection.execute(delete(schema.admin_sessions).where(schema.admin_sessions.c.admin_id == before.id))
    after = await _one(change.connection, before.id)
    await change.record("admin", before.id, before.name, before, after)
    return after
