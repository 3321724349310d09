"""Tenants and keys: every question and every change, each in one transaction. Nothing here is on a request's path.

Usage has a module of its own, `gateway.store.usage`.
"""

import asyncio
import contextlib
import hmac
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.core.keys import RANDOM_BYTES, display, fingerprint, new_key
from gateway.store import schema
from gateway.store.engine import new_engine, reading, writing
from gateway.store.find import KEY, TENANT, one_key, one_tenant
from gateway.store.migrate import migrate
from gateway.store.pepper import read_pepper
from gateway.store.rows import CredentialRow, KeyRow, Snapshot, TenantRow
from shared.errors import ConflictError, InvalidRecordError, StoreError
from shared.settings import Settings
from shared.settings_schema import mask_url

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
PEPPER_CHECK = b"evenflow: is this the pepper that this store's keys were made with?"

_CREDENTIAL = (
    select(
        schema.keys.c.hash,
        schema.keys.c.id.label("key_id"),
        schema.tenants.c.id.label("tenant_id"),
        schema.tenants.c.name.label("tenant_name"),
        schema.tenants.c.max_streams,
        schema.keys.c.expires_at,
    )
    .join_from(schema.keys, schema.tenants)
    .where(schema.keys.c.revoked_at.is_(None), schema.tenants.c.disabled_at.is_(None))
)
_REVISION = select(schema.revision.c.number)


def wall_clock_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


class Store:
    """The one place that reads and writes tenants and keys. Made by `Store.open`; several processes may have it open.

    Every method raises `StoreError` when the database cannot be used. Tenants and keys go by name or id.
    """

    def __init__(self, engine: AsyncEngine, pepper: bytes, now_ms: Callable[[], int], url: str) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self._shown_url = mask_url(url)
        self.pepper = pepper
        self.store_id = ""

    @classmethod
    async def open(cls, settings: Settings, *, now_ms: Callable[[], int] = wall_clock_ms) -> "Store":
        """Open the store, making or migrating it as needed. The pepper is made when missing, but not in profile prod.

        Raises:
            SettingsError: If the pepper is missing or cannot be read.
            StoreError: If the database cannot be used, is newer than this Evenflow, or has keys of another pepper.
        """
        path = Path(settings.store.pepper_file)
        pepper = await asyncio.to_thread(read_pepper, path, create=settings.profile != "prod")
        store = cls(new_engine(settings.store.url), pepper, now_ms, settings.store.url)
        try:
            with store._translated():
                await migrate(store._engine)
            await store._identify(settings.store.pepper_file)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Close every connection. Safe to call twice."""
        await self._engine.dispose()

    async def create_tenant(self, name: str, *, max_streams: int | None = None) -> TenantRow:
        """Add a tenant.

        Raises:
            InvalidRecordError: If the name is not `[a-z0-9][a-z0-9_-]{0,62}`, or `max_streams` is below 1.
            ConflictError: If there is one of that name.
        """
        _check_name("tenant", name)
        if max_streams is not None and max_streams < 1:
            raise InvalidRecordError(f"max_streams {max_streams} must be at least 1")
        tenant = TenantRow(str(uuid.uuid4()), name, self._now_ms(), None, max_streams)
        async with self._change(f"there is a tenant named {name} already") as connection:
            await connection.execute(
                insert(schema.tenants).values(
                    id=tenant.id, name=name, created_at=tenant.created_at, max_streams=max_streams
                )
            )
        return tenant

    async def set_tenant_disabled(self, tenant: str, *, disabled: bool) -> TenantRow:
        """Shut all of a tenant's keys out, or let them in again.

        Raises:
            UnknownRecordError: If there is no such tenant.
        """
        async with self._change() as connection:
            row = await one_tenant(connection, tenant)
            at = (row.disabled_at or self._now_ms()) if disabled else None
            await connection.execute(update(schema.tenants).where(schema.tenants.c.id == row.id).values(disabled_at=at))
            return await one_tenant(connection, row.id)

    async def create_key(self, tenant: str, name: str, *, expires_at: int | None = None) -> tuple[KeyRow, str]:
        """Make a key for a tenant: its row, and the key itself, which is not kept and cannot be shown again.

        Raises:
            InvalidRecordError: If the name is not `[a-z0-9][a-z0-9_-]{0,62}`, or `expires_at` (ms) is not ahead.
            UnknownRecordError: If there is no such tenant.
            ConflictError: If the tenant has a key of that name which is not revoked.
        """
        _check_name("key", name)
        now = self._now_ms()
        if expires_at is not None and expires_at <= now:
            raise InvalidRecordError("a key cannot expire before it is made")
        secret = new_key(secrets.token_bytes(RANDOM_BYTES))
        async with self._change(f"tenant {tenant} has a key named {name} already; revoke it first") as connection:
            owner = await one_tenant(connection, tenant)
            key = KeyRow(str(uuid.uuid4()), owner.id, owner.name, name, display(secret), now, expires_at, None)
            await connection.execute(
                insert(schema.keys).values(
                    id=key.id,
                    tenant_id=owner.id,
                    name=name,
                    hash=fingerprint(self.pepper, secret),
                    display=key.display,
                    created_at=now,
                    expires_at=expires_at,
                )
            )
        return key, secret

    async def revoke_key(self, key: str, *, tenant: str | None = None) -> KeyRow:
        """Revoke a key by its id, or by its name, with its tenant where several have one of that name.

        Revoking a revoked key changes nothing.

        Raises:
            UnknownRecordError: If there is no such key, or more than one.
        """
        async with self._read() as connection:
            row = await one_key(connection, key, tenant)
        if row.revoked_at is not None:
            return row
        live = (schema.keys.c.id == row.id) & schema.keys.c.revoked_at.is_(None)
        async with self._change() as connection:
            await connection.execute(update(schema.keys).where(live).values(revoked_at=self._now_ms()))
            return await one_key(connection, row.id, None)

    async def tenants(self) -> tuple[TenantRow, ...]:
        """All tenants, by name."""
        async with self._read() as connection:
            rows = await connection.execute(TENANT.order_by(schema.tenants.c.name))
            return tuple(TenantRow(*row) for row in rows)

    async def tenant(self, tenant: str) -> TenantRow:
        """One tenant. Raises UnknownRecordError if there is no such tenant."""
        async with self._read() as connection:
            return await one_tenant(connection, tenant)

    async def keys(self, tenant: str | None = None) -> tuple[KeyRow, ...]:
        """All keys, or one tenant's, revoked ones included, by tenant and age.

        Raises:
            UnknownRecordError: If there is no such tenant.
        """
        query = KEY.order_by(schema.tenants.c.name, schema.keys.c.created_at, schema.keys.c.id)
        async with self._read() as connection:
            if tenant is not None:
                query = query.where(schema.keys.c.tenant_id == (await one_tenant(connection, tenant)).id)
            return tuple(KeyRow(*row) for row in await connection.execute(query))

    async def revision(self) -> int:
        """How many changes there have been: a number that differs means that something did change."""
        async with self._read() as connection:
            return int((await connection.execute(_REVISION)).scalar_one())

    async def snapshot(self) -> Snapshot:
        """Everything that the keyring needs, as of one moment."""
        async with self._read() as connection:
            number = int((await connection.execute(_REVISION)).scalar_one())
            rows = await connection.execute(_CREDENTIAL)
            return Snapshot(self.store_id, number, tuple(CredentialRow(*row) for row in rows))

    @contextlib.asynccontextmanager
    async def transaction(self, *, writes: bool) -> AsyncIterator[AsyncConnection]:
        """One transaction for tables that have a module of their own, in this package."""
        async with self._transaction((writing if writes else reading)(self._engine)) as connection:
            yield connection

    @property
    def now_ms(self) -> int:
        """The store's clock."""
        return self._now_ms()

    async def _identify(self, pepper_file: str) -> None:
        """Learn the store's id, and see that the pepper is the one that its keys were made with."""
        mine = fingerprint(self.pepper, PEPPER_CHECK.decode())
        async with self._transaction(writing(self._engine)) as connection:
            row = (await connection.execute(select(schema.identity.c.store_id, schema.identity.c.pepper_check))).one()
            used = (await connection.execute(select(schema.keys.c.id).limit(1))).first() is not None
            if row.pepper_check is None or not hmac.compare_digest(row.pepper_check, mine):
                if row.pepper_check is not None and used:
                    raise StoreError(f"the pepper in {pepper_file} is not the one that the keys here were made with")
                await connection.execute(update(schema.identity).values(pepper_check=mine))
            self.store_id = str(row.store_id)

    @contextlib.asynccontextmanager
    async def _read(self) -> AsyncIterator[AsyncConnection]:
        async with self._transaction(reading(self._engine)) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _change(self, conflict: str = "the change contradicts another one") -> AsyncIterator[AsyncConnection]:
        """A transaction that also bumps the revision, first: so changes queue up behind that row in every database."""
        try:
            async with self._transaction(writing(self._engine)) as connection:
                await connection.execute(update(schema.revision).values(number=schema.revision.c.number + 1))
                yield connection
        except IntegrityError:
            raise ConflictError(conflict) from None

    @contextlib.asynccontextmanager
    async def _transaction(self, options: dict[str, Any]) -> AsyncIterator[AsyncConnection]:
        with self._translated():
            async with self._engine.connect() as connection:
                await connection.execution_options(**options)
                async with connection.begin():
                    yield connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """The database's errors as ours; a broken constraint passes, as only the caller knows what it means."""
        try:
            yield
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError) as error:
            reason = getattr(error, "orig", None) or error
            raise StoreError(f"cannot use the store at {self._shown_url}: {reason}") from error


def _check_name(what: str, name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise InvalidRecordError(
            f"{what} name {name!r} must be 1 to 63 of a-z, 0-9, - and _, and begin with a letter or digit"
        )
