"""Keys: every question and every change, each in one transaction."""

import secrets
import uuid

from sqlalchemy import insert, update

from gateway.core.keys import RANDOM_BYTES, display, fingerprint, new_key
from gateway.store import schema
from gateway.store.database import Database
from gateway.store.find import KEY, key_row, one_key, one_tenant
from gateway.store.rows import Actor, KeyRow
from gateway.store.tenants import check_name
from shared.errors import InvalidRecordError


class KeyTable:
    """Every method raises `StoreError` when the database cannot be used. Tenants and keys go by name or id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant: str, name: str, *, by: Actor, expires_at: int | None = None) -> tuple[KeyRow, str]:
        """Make a key for a tenant: its row, and the key itself, which is not kept and cannot be shown again.

        Raises:
            InvalidRecordError: If the name is not `[a-z0-9][a-z0-9_-]{0,62}`, or `expires_at` (ms) is not ahead.
            UnknownRecordError: If there is no such tenant.
            ConflictError: If the tenant has a key of that name which is in force.
        """
        check_name("key", name)
        if expires_at is not None and expires_at <= self._database.now_ms():
            raise InvalidRecordError("a key cannot expire before it is made")
        secret = new_key(secrets.token_bytes(RANDOM_BYTES))
        conflict = f"tenant {tenant} has a key named {name} already; revoke it first"
        async with self._database.change(by, "key.create", conflict=conflict) as change:
            owner = await one_tenant(change.connection, tenant)
            key_id = str(uuid.uuid4())
            await change.connection.execute(
                insert(schema.keys).values(
                    id=key_id,
                    tenant_id=owner.id,
                    name=name,
                    hash=fingerprint(self._database.pepper, secret),
                    display=display(secret),
                    created_at=change.now,
                    expires_at=expires_at,
                )
            )
            key = await one_key(change.connection, key_id, owner.id)
            await change.record("key", key.id, f"{owner.name}/{name}", None, key)
        return key, secret

    async def revoke(self, key: str, *, by: Actor, tenant: str | None = None) -> KeyRow:
        """Revoke a key by its id, or by its name, with its tenant where several have one of that name.

        Revoking a revoked key changes nothing.

        Raises:
            UnknownRecordError: If there is no such key, or more than one.
        """
        async with self._database.read() as connection:
            row = await one_key(connection, key, tenant)
        if row.revoked_at is not None:
            return row
        live = (schema.keys.c.id == row.id) & schema.keys.c.revoked_at.is_(None)
        async with self._database.change(by, "key.revoke") as change:
            before = await one_key(change.connection, row.id, None)
            await change.connection.execute(
                update(schema.keys).where(live).values(revoked_at=change.now, version=schema.keys.c.version + 1)
            )
            after = await one_key(change.connection, row.id, None)
            await change.record("key", row.id, f"{row.tenant_name}/{row.name}", before, after)
            return after

    async def all(self, tenant: str | None = None) -> tuple[KeyRow, ...]:
        """All keys, or one tenant's, revoked ones included, by tenant and age.

        Raises:
            UnknownRecordError: If there is no such tenant.
        """
        query = KEY.order_by(schema.tenants.c.name, schema.keys.c.created_at, schema.keys.c.id)
        async with self._database.read() as connection:
            if tenant is not None:
                query = query.where(schema.keys.c.tenant_id == (await one_tenant(connection, tenant)).id)
            return tuple(key_row(row) for row in await connection.execute(query))
