"""Keys: every question and every change, each in one transaction."""

import secrets
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import UNSET, UnsetType
from sqlalchemy import bindparam, insert, or_, update

from gateway.core.keys import RANDOM_BYTES, SCOPES, display, fingerprint, new_key
from gateway.store import schema
from gateway.store.database import Change, Database
from gateway.store.find import KEY, key_row, one_key, one_tenant
from gateway.store.key_rules import check_expiry, check_models, check_networks, check_scopes, kept
from gateway.store.quotas import copy_limits
from gateway.store.rows import Actor, KeyRow
from gateway.store.tenants import check_name, check_version
from shared.errors import ConflictError, InvalidRecordError

LONGEST_OVERLAP_S: Final = 366 * 86_400
_USED: Final = (
    update(schema.keys)
    .where(
        schema.keys.c.id == bindparam("used_key"),
        or_(schema.keys.c.last_used_at.is_(None), schema.keys.c.last_used_at < bindparam("used_at")),
    )
    .values(last_used_at=bindparam("used_at"))
)


class KeyTable:
    """Every method raises `StoreError` when the database cannot be used. Tenants and keys go by name or id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        tenant: str,
        name: str,
        *,
        by: Actor,
        expires_at: int | None = None,
        scopes: Iterable[str] = SCOPES,
        models: Iterable[str] | None = None,
        networks: Iterable[str] | None = None,
    ) -> tuple[KeyRow, str]:
        """Make a key for a tenant: its row, and the key itself, which is not kept and cannot be shown again.

        `models` and `networks` of None allow all of them.

        Raises:
            InvalidRecordError: If the name is not `[a-z0-9][a-z0-9_-]{0,62}`, `expires_at` (ms) is not ahead, or a
                scope, model or network is none.
            UnknownRecordError: If there is no such tenant.
            ConflictError: If the tenant has a key of that name which is in force.
        """
        check_name("key", name)
        values = {
            "name": name,
            "expires_at": check_expiry(expires_at, self._database.now_ms()),
            "scopes": kept(check_scopes(scopes)),
            "models": kept(check_models(models)),
            "networks": kept(check_networks(networks)),
        }
        conflict = f"tenant {tenant} has a key named {name} already; revoke it first"
        async with self._database.change(by, "key.create", conflict=conflict) as change:
            owner = await one_tenant(change.connection, tenant)
            return await self._insert(change, str(uuid.uuid4()), {"tenant_id": owner.id, **values})

    async def update(
        self,
        key: str,
        *,
        by: Actor,
        tenant: str | None = None,
        version: int | None = None,
        expires_at: int | UnsetType | None = UNSET,
        scopes: Iterable[str] | UnsetType = UNSET,
        models: Iterable[str] | UnsetType | None = UNSET,
        networks: Iterable[str] | UnsetType | None = UNSET,
    ) -> KeyRow:
        """Change what a key may do, or until when; what is not given stays. `version`, if given, must be the row's.

        Raises:
            InvalidRecordError: As `create`; or if a key that was rotated is to live for ever.
            UnknownRecordError: If there is no such key, or more than one.
            ConflictError: If it was revoked.
            StaleRecordError: If somebody changed it since.
        """
        values: dict[str, Any] = {}
        if expires_at is not UNSET:
            values["expires_at"] = check_expiry(expires_at, self._database.now_ms())
        if scopes is not UNSET:
            values["scopes"] = kept(check_scopes(scopes))
        if models is not UNSET:
            values["models"] = kept(check_models(models))
        if networks is not UNSET:
            values["networks"] = kept(check_networks(networks))
        async with self._database.change(by, "key.update") as change:
            before = await _in_force(change, key, tenant, version)
            if before.replaced_by is not None and values.get("expires_at", 0) is None:
                raise InvalidRecordError(f"key {before.name} was rotated: it has to expire")
            return await _changed(change, before, **values)

    async def rotate(
        self, key: str, overlap_s: float, *, by: Actor, tenant: str | None = None, version: int | None = None
    ) -> tuple[KeyRow, str]:
        """Replace a key: a new one of the same name that may do the same, as long; its row, and the key itself.

        The old one goes on for `overlap_s` seconds, 0 to a year, but never longer than it had. Limits of its own hold
        for the new one, too.

        Raises:
            InvalidRecordError: If the overlap is out of bounds.
            UnknownRecordError: If there is no such key, or more than one.
            ConflictError: If it was revoked or rotated, or has expired.
            StaleRecordError: If somebody changed it since.
        """
        if not 0 <= overlap_s <= LONGEST_OVERLAP_S:
            raise InvalidRecordError(f"an overlap of {overlap_s:g} s is not from 0 to {LONGEST_OVERLAP_S}")
        async with self._database.change(by, "key.rotate") as change:
            old = await _in_force(change, key, tenant, version)
            if old.replaced_by is not None:
                raise ConflictError(f"key {old.name} was rotated already: rotate the one that replaced it")
            if old.expires_at is not None and old.expires_at <= change.now:
                raise ConflictError(f"key {old.name} has expired: make a new one")
            new_id, ends = str(uuid.uuid4()), change.now + int(overlap_s * 1000)
            # First the old one gives its name back: a name means one key at a time.
            await _changed(change, old, replaced_by=new_id, expires_at=min(ends, old.expires_at or ends))
            values = {
                "tenant_id": old.tenant_id,
                "name": old.name,
                "expires_at": old.expires_at,
                "scopes": kept(old.scopes),
                "models": kept(old.models),
                "networks": kept(old.networks),
            }
            new, secret = await self._insert(change, new_id, values)
            await copy_limits(change, old, new)
        return new, secret

    async def revoke(self, key: str, *, by: Actor, tenant: str | None = None, version: int | None = None) -> KeyRow:
        """Revoke a key by its id, or by its name, with its tenant where several have one of that name.

        Revoking a revoked key changes nothing.

        Raises:
            UnknownRecordError: If there is no such key, or more than one.
            StaleRecordError: If somebody changed it since.
        """
        async with self._database.read() as connection:
            row = await one_key(connection, key, tenant)
        if row.revoked_at is not None:
            return row
        async with self._database.change(by, "key.revoke") as change:
            before = await _row(change, row.id)
            check_version(f"key {before.name}", version, before.version)
            return await _changed(change, before, revoked_at=before.revoked_at or change.now)

    async def used(self, last: Mapping[str, int]) -> None:
        """Note when keys, by their ids, were last used, in ms since 1970: no operator's change. Later times stay."""
        async with self._database.write() as connection:
            await connection.execute(_USED, [{"used_key": key, "used_at": at} for key, at in last.items()])

    async def one(self, key: str, *, tenant: str | None = None) -> KeyRow:
        """One key. Raises UnknownRecordError if there is no such key, or more than one."""
        async with self._database.read() as connection:
            return await one_key(connection, key, tenant)

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

    async def _insert(self, change: Change, key_id: str, values: Mapping[str, Any]) -> tuple[KeyRow, str]:
        secret = new_key(secrets.token_bytes(RANDOM_BYTES))
        await change.connection.execute(
            insert(schema.keys).values(
                id=key_id,
                hash=fingerprint(self._database.pepper, secret),
                display=display(secret),
                created_at=change.now,
                **values,
            )
        )
        key = await _row(change, key_id)
        await change.record("key", key.id, _title(key), None, key)
        return key, secret


async def _in_force(change: Change, key: str, tenant: str | None, version: int | None) -> KeyRow:
    """The key that a change is about. Raises ConflictError if it was revoked."""
    row = await one_key(change.connection, key, tenant)
    check_version(f"key {row.name}", version, row.version)
    if row.revoked_at is not None:
        raise ConflictError(f"key {row.name} was revoked")
    return row


async def _row(change: Change, key_id: str) -> KeyRow:
    return key_row((await change.connection.execute(KEY.where(schema.keys.c.id == key_id))).one())


async def _changed(change: Change, before: KeyRow, **values: object) -> KeyRow:
    await change.connection.execute(
        update(schema.keys).where(schema.keys.c.id == before.id).values(**values, version=schema.keys.c.version + 1)
    )
    after = await _row(change, before.id)
    await change.record("key", before.id, _title(before), before, after)
    return after


def _title(key: KeyRow) -> str:
    return f"{key.tenant_name}/{key.name}"
