"""What creations that named themselves were answered, so that their repetitions are answered alike, by any gateway.

A creation first takes its name, does what it does, and then puts its answer there. While it is at it, whoever repeats
it is told to wait; if it never comes back, its name is free again after a minute.
"""

from typing import Final

import msgspec
from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.store import schema
from gateway.store.database import Database

KEPT_MS: Final = 24 * 3_600_000
ABANDONED_MS: Final = 60_000
_UNDER_WAY: Final = 0
_ROWS: Final = schema.idempotency.c


class Kept(msgspec.Struct, frozen=True):
    """What a creation was answered. `request` is a hash of what was asked; `body` is opaque here. Status 0: not yet."""

    request: bytes
    status: int
    headers: str
    body: bytes

    @property
    def under_way(self) -> bool:
        """Somebody is at it."""
        return self.status == _UNDER_WAY


class RepeatTable:
    """Every method raises `StoreError` when the database cannot be used. `actor` and `key` name a creation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, actor: str, key: str, request: bytes) -> Kept | None:
        """Take the name: `None` if it is the caller's now, else what is there."""
        now = self._database.now_ms()
        try:
            async with self._database.write() as connection:
                abandoned = (_ROWS.status == _UNDER_WAY) & (_ROWS.created_at <= now - ABANDONED_MS)
                await connection.execute(
                    delete(schema.idempotency).where((_ROWS.created_at <= now - KEPT_MS) | abandoned)
                )
                row = (await connection.execute(select(schema.idempotency).where(_named(actor, key)))).first()
                if row is not None:
                    return Kept(row.request, row.status, row.headers, row.body)
                values = {"actor": actor, "key": key, "request": request, "created_at": now}
                await connection.execute(
                    insert(schema.idempotency).values(**values, status=_UNDER_WAY, headers="", body=b"")
                )
        except IntegrityError:  # somebody took it at the same time
            return Kept(request, _UNDER_WAY, "", b"")
        return None

    async def finish(self, actor: str, key: str, *, status: int, headers: str, body: bytes) -> None:
        """Put the answer there."""
        async with self._database.write() as connection:
            await connection.execute(
                update(schema.idempotency).where(_named(actor, key)).values(status=status, headers=headers, body=body)
            )

    async def abandon(self, actor: str, key: str) -> None:
        """Nothing was made: give the name back."""
        async with self._database.write() as connection:
            await connection.execute(
                delete(schema.idempotency).where(_named(actor, key) & (_ROWS.status == _UNDER_WAY))
            )


def _named(actor: str, key: str) -> ColumnElement[bool]:
    return (_ROWS.actor == actor) & (_ROWS.key == key)
