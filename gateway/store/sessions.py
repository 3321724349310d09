"""Who is logged in to the admin plane: every question and every change, each in one transaction."""

import hmac
import secrets
from typing import Final

import msgspec
from sqlalchemy import delete, insert, select, update

from gateway.store import schema
from gateway.store.admins import AdminRow
from gateway.store.database import Database
from gateway.store.rows import Actor
from shared.errors import UnknownRecordError

TOUCH_MS: Final = 60_000
"""A session in use is written down as such at most once in so long."""
MOST: Final = 32
"""Sessions of one admin; the oldest goes for one more."""
_SECRET_BYTES: Final = 32
_PURPOSE: Final = b"evenflow: sessions of the admin plane\0"

_SESSION: Final = select(
    schema.admin_sessions.c.hash,
    schema.admin_sessions.c.csrf,
    schema.admin_sessions.c.created_at,
    schema.admin_sessions.c.seen_at,
    schema.admin_sessions.c.expires_at,
    schema.admin_sessions.c.source,
    schema.admins.c.id,
    schema.admins.c.name,
).join_from(schema.admin_sessions, schema.admins)


class SessionRow(msgspec.Struct, frozen=True):
    """A session as people may see it, and as the audit log has it: neither cookie, hash nor token against forgery."""

    admin_id: str
    created_at: int
    expires_at: int
    source: str


class OpenSession(msgspec.Struct, frozen=True):
    """A session that holds: whose, its row, and its token against forged requests."""

    hash: bytes
    admin_id: str
    admin_name: str
    csrf: str
    row: SessionRow


class SessionTable:
    """Every method raises `StoreError` when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, admin: AdminRow, *, source: str, most_ms: int) -> tuple[OpenSession, str]:
        """Log an admin in, for `most_ms` at the longest: the session, and the cookie, which is not kept.

        Raises:
            UnknownRecordError: If the admin was shut out or given another password meanwhile.
        """
        secret, csrf = (secrets.token_urlsafe(_SECRET_BYTES) for _ in range(2))
        sessions = schema.admin_sessions.c
        async with self._database.change(Actor("admin", admin.id, admin.name, source), "session.open") as change:
            same = (schema.admins.c.id == admin.id) & (schema.admins.c.version == admin.version)
            if (await change.connection.execute(select(schema.admins.c.id).where(same))).first() is None:
                raise UnknownRecordError(f"admin {admin.name} was changed meanwhile")
            others = select(sessions.hash).where(sessions.admin_id == admin.id).order_by(sessions.created_at.desc())
            stale = [row.hash for row in await change.connection.execute(others.offset(MOST - 1))]
            await change.connection.execute(
                delete(schema.admin_sessions).where((sessions.expires_at <= change.now) | sessions.hash.in_(stale))
            )
            row = SessionRow(admin.id, change.now, change.now + most_ms, source)
            opened = OpenSession(self._hash(secret), admin.id, admin.name, csrf, row)
            await change.connection.execute(
                insert(schema.admin_sessions).values(
                    hash=opened.hash, csrf=csrf, seen_at=change.now, **msgspec.structs.asdict(row)
                )
            )
            await change.record("session", admin.id, admin.name, None, row)
        return opened, secret

    async def find(self, secret: str, *, idle_ms: int) -> OpenSession | None:
        """The session of that cookie, if it holds: used within `idle_ms`, not over, its admin not shut out."""
        now, hashed = self._database.now_ms(), self._hash(secret)
        async with self._database.read() as connection:
            holds = (schema.admin_sessions.c.hash == hashed) & schema.admins.c.disabled_at.is_(None)
            row = (await connection.execute(_SESSION.where(holds))).first()
        if row is None or now >= row.expires_at or now >= row.seen_at + idle_ms:
            return None
        if now >= row.seen_at + min(TOUCH_MS, idle_ms // 2):
            async with self._database.write() as connection:
                mine = schema.admin_sessions.c.hash == hashed
                await connection.execute(update(schema.admin_sessions).where(mine).values(seen_at=now))
        kept = SessionRow(row.id, row.created_at, row.expires_at, row.source)
        return OpenSession(hashed, row.id, row.name, row.csrf, kept)

    async def close(self, session: OpenSession, *, by: Actor) -> None:
        """Log out. A session that is over already stays so."""
        mine = schema.admin_sessions.c.hash == session.hash
        async with self._database.change(by, "session.close") as change:
            await change.connection.execute(delete(schema.admin_sessions).where(mine))
            await change.record("session", session.admin_id, session.admin_name, session.row, None)

    def _hash(self, secret: str) -> bytes:
        return hmac.digest(self._database.pepper, _PURPOSE + secret.encode(), "sha256")
