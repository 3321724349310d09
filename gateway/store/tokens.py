"""Tokens of programs that use the admin plane: every question and every change, each in one transaction."""

import secrets
import uuid
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.admin_tokens import SCOPES, Scope, display, new_token, well_formed
from gateway.core.keys import RANDOM_BYTES, fingerprint
from gateway.store import schema
from gateway.store.database import Database
from gateway.store.rows import Actor
from gateway.store.tenants import check_name, check_version
from shared.errors import InvalidRecordError, UnknownRecordError

TOUCH_MS: Final = 60_000
"""A token in use is written down as such at most once in so long."""
TOKEN: Final = select(*(column for column in schema.admin_tokens.c if column.name != "hash"))
"""Every token, for `token_row`."""
_SCOPES: Final = msgspec.json.Decoder(tuple[Scope, ...])


class TokenRow(msgspec.Struct, frozen=True):
    """A token as people may see it: never itself nor its hash. `display` is how it starts. Times in ms since 1970."""

    id: str
    name: str
    display: str
    scopes: tuple[Scope, ...]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    version: int


class TokenTable:
    """Every method raises `StoreError` when the database cannot be used. Tokens go by name or id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, name: str, scopes: Sequence[str], *, by: Actor, expires_at: int | None = None
    ) -> tuple[TokenRow, str]:
        """Make a token: its row, and the token itself, which is not kept and cannot be shown again.

        Raises:
            InvalidRecordError: If the name, a scope or the expiry (ms) cannot be.
            ConflictError: If there is one of that name which is in force.
        """
        check_name("token", name)
        wanted = _scopes(scopes)
        if expires_at is not None and expires_at <= self._database.now_ms():
            raise InvalidRecordError("a token cannot expire before it is made")
        secret = new_token(secrets.token_bytes(RANDOM_BYTES))
        conflict = f"there is a token named {name} already; revoke it first"
        async with self._database.change(by, "token.create", conflict=conflict) as change:
            token = TokenRow(str(uuid.uuid4()), name, display(secret), wanted, change.now, expires_at, None, None, 1)
            values = msgspec.structs.asdict(token) | {"scopes": msgspec.json.encode(wanted).decode()}
            await change.connection.execute(
                insert(schema.admin_tokens).values(hash=fingerprint(self._database.pepper, secret), **values)
            )
            await change.record("token", token.id, name, None, token)
        return token, secret

    async def revoke(self, token: str, *, by: Actor, version: int | None = None) -> TokenRow:
        """Revoke a token; the next request with it is refused. Revoking a revoked one changes nothing.

        Raises:
            UnknownRecordError: If there is no such token.
            StaleRecordError: If somebody changed it since.
        """
        before = await self.one(token)
        check_version(f"token {before.name}", version, before.version)
        if before.revoked_at is not None:
            return before
        async with self._database.change(by, "token.revoke") as change:
            before = await _one(change.connection, before.id)
            check_version(f"token {before.name}", version, before.version)
            mine = schema.admin_tokens.c.id == before.id
            values = {"revoked_at": before.revoked_at or change.now, "version": before.version + 1}
            await change.connection.execute(update(schema.admin_tokens).where(mine).values(**values))
            after = await _one(change.connection, before.id)
            await change.record("token", before.id, before.name, before, after)
        return after

    async def find(self, secret: str) -> TokenRow | None:
        """The row of a token that is in force."""
        if not well_formed(secret):
            return None
        mine = schema.admin_tokens.c.hash == fingerprint(self._database.pepper, secret)
        async with self._database.read() as connection:
            found = (await connection.execute(TOKEN.where(mine))).first()
        now = self._database.now_ms()
        if found is None or found.revoked_at is not None or (found.expires_at is not None and now >= found.expires_at):
            return None
        if now >= (found.last_used_at or 0) + TOUCH_MS:
            async with self._database.write() as connection:
                await connection.execute(update(schema.admin_tokens).where(mine).values(last_used_at=now))
        return token_row(found)

    async def one(self, token: str) -> TokenRow:
        """One token: the one in force of that name, else the newest. Raises UnknownRecordError if there is none."""
        async with self._database.read() as connection:
            return await _one(connection, token)

    async def all(self) -> tuple[TokenRow, ...]:
        """All tokens, revoked ones included, by name and age."""
        tokens = schema.admin_tokens.c
        async with self._database.read() as connection:
            rows = await connection.execute(TOKEN.order_by(tokens.name, tokens.created_at, tokens.id))
            return tuple(token_row(row) for row in rows)


def _scopes(asked: Sequence[str]) -> tuple[Scope, ...]:
    if not asked or not set(asked) <= set(SCOPES):
        raise InvalidRecordError(f"a token needs scopes of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in asked)


def token_row(found: Any) -> TokenRow:
    """A row of `TOKEN`."""
    return TokenRow(**found._asdict() | {"scopes": _SCOPES.decode(found.scopes)})


async def _one(connection: AsyncConnection, token: str) -> TokenRow:
    tokens = schema.admin_tokens.c
    newest = (tokens.revoked_at.is_(None).desc(), tokens.created_at.desc())
    named = (tokens.id == token) | (tokens.name == token)
    found = (
        await connection.execute(TOKEN.where(named).order_by((tokens.id == token).desc(), *newest).limit(1))
    ).first()
    if found is None:
        raise UnknownRecordError(f"there is no token {token!r}")
    return token_row(found)
