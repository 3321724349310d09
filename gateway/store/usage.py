"""Usage in the store: one row a request, written together with how far the stream has been read; and who reads it."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Insert, String, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.ledger import Closed
from gateway.store import schema
from gateway.store.database import Database
from gateway.store.rows import Progress, UsageRow

_MOST = 2**53
"""Counts beyond it are nonsense, and a database that refused them would refuse all that comes behind."""
_USAGE = tuple(schema.usage.c[name] for name in UsageRow.__struct_fields__)
_LENGTHS = {column.name: column.type.length for column in schema.usage.c if isinstance(column.type, String)}
_PROGRESS = tuple(schema.usage_progress.c[name] for name in Progress.__struct_fields__)


class UsageTable:
    """The tables of usage. Every method is one transaction, and raises `StoreError` if the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def lease(self, name: str, holder: str, ttl_ms: int) -> bool:
        """Take the lease, or renew one's own, for `ttl_ms` from now. False: somebody else has it."""
        now = self._database.now_ms()
        async with self._database.write() as connection:
            wanted = {"name": name, "holder": holder, "expires_at": now + ttl_ms}
            free = (schema.leases.c.holder == holder) | (schema.leases.c.expires_at <= now)
            taken = await connection.execute(
                _insert(connection, schema.leases)
                .values(wanted)
                .on_conflict_do_update(index_elements=["name"], set_=wanted, where=free)
            )
            return taken.rowcount == 1

    async def release(self, name: str, holder: str) -> None:
        """Give the lease up, if one has it."""
        mine = (schema.leases.c.name == name) & (schema.leases.c.holder == holder)
        async with self._database.write() as connection:
            await connection.execute(update(schema.leases).where(mine).values(expires_at=0))

    async def progress(self) -> Progress:
        """How far the stream has been read."""
        async with self._database.read() as connection:
            return Progress(*(await connection.execute(select(*_PROGRESS))).one())

    async def record(self, closed: Sequence[Closed], progress: Progress) -> None:
        """Write what was closed, and how far the stream was read for it: both or neither.

        A request that has its row keeps it: repeating this, whole or in part, changes nothing.
        """
        async with self._database.write() as connection:
            if closed:
                rows = [_values(one) for one in closed]
                await connection.execute(_insert(connection, schema.usage).on_conflict_do_nothing(), rows)
            await connection.execute(
                update(schema.usage_progress).values(
                    {name: getattr(progress, name) for name in progress.__struct_fields__}
                )
            )

    async def known(self, ids: Iterable[str]) -> set[str]:
        """Which of these requests have their row."""
        async with self._database.read() as connection:
            rows = await connection.execute(select(schema.usage.c.id).where(schema.usage.c.id.in_(list(ids))))
            return {row.id for row in rows}

    async def rows(self, *, tenant_id: str | None = None, most: int = 100) -> tuple[UsageRow, ...]:
        """The last `most` requests, newest first."""
        query = select(*_USAGE).order_by(schema.usage.c.closed_at.desc(), schema.usage.c.id.desc()).limit(most)
        if tenant_id is not None:
            query = query.where(schema.usage.c.tenant_id == tenant_id)
        async with self._database.read() as connection:
            return tuple(UsageRow(*row) for row in await connection.execute(query))


def _insert(connection: AsyncConnection, table: Any) -> Any:
    """An insert that can say what to do with a row that is there: the same words in both databases."""
    made: Insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
    return made


def _values(closed: Closed) -> dict[str, Any]:
    """A row that any database takes, whatever a peer has put into its record."""
    close = closed.close
    row: dict[str, Any] = {name: getattr(close, name) for name in UsageRow.__struct_fields__ if hasattr(close, name)}
    row |= {
        "id": close.aid,
        "request_id": close.label or close.aid,
        "tenant_id": close.tenant,
        "key_id": close.key,
        "sequence": closed.sequence,
        "closed_at": closed.at_ms,
    }
    return {name: _sane(name, value) for name, value in row.items()}


def _sane(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "")[: _LENGTHS[name]]
    if isinstance(value, float):
        return min(max(value, 0.0), float(_MOST)) if math.isfinite(value) else 0.0
    return min(max(value, 0), _MOST)
