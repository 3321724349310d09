"""Usage in the store: a row for each request, its sums by day, and how far the stream was read: all or nothing."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Insert, String, case, delete, exists, func, literal, select, tuple_, union, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import daily
from gateway.core.charging import FINISHED
from gateway.core.ledger import Closed
from gateway.store import schema
from gateway.store.database import Database
from gateway.store.rows import DaySum, Progress, UsageRow
from gateway.store.usage_report import Page, Question, report, summed, sums_of
from shared.errors import StaleRecordError

_USAGE = tuple(schema.usage.c[name] for name in UsageRow.__struct_fields__)
_LENGTHS = {column.name: column.type.length for column in schema.usage.c if isinstance(column.type, String)}
_PROGRESS = tuple(schema.usage_progress.c[name] for name in Progress.__struct_fields__)
_PLACE = tuple(schema.usage_days.c[name] for name in daily.Place._fields)
_IDS_AT_ONCE = 500


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

    async def record(self, closed: Sequence[Closed], progress: Progress, *, after: Progress | None = None) -> int:
        """Write what was closed, count it in its day, and say how far the stream was read for it: all or nothing.

        A request that has its row keeps it, and one whose row was deleted as too old has been counted: repeating this,
        whole or in part, changes nothing. Returns how many rows are new.

        Raises:
            StaleRecordError: If `after` is given, and the stream was read on by somebody else since then.
        """
        async with self._database.write() as connection:
            pruned_at = await _advance(connection, progress, after)
            rows: dict[str, UsageRow] = {}
            for one in closed:
                if one.at_ms >= pruned_at:
                    row = usage_row(one)
                    rows.setdefault(row.id, row)
            if not rows:
                return 0
            added = await connection.execute(
                _insert(connection, schema.usage).on_conflict_do_nothing().returning(schema.usage.c.id),
                [msgspec.structs.asdict(row) for row in rows.values()],
            )
            new = [rows[found.id] for found in added]
            await _add_up(connection, new)
            return len(new)

    async def prune(self, keep_ms: int, most: int) -> int:
        """Delete rows that closed more than `keep_ms` ago, at most so many, and none that its day has not counted.

        The sums stay, and so do the rows of the last millisecond that was read: what comes later cannot be older than
        that, whatever our clock says, so that all before it is known to have been counted. Returns how many are gone.
        """
        usage, days, progress = schema.usage.c, schema.usage_days.c, schema.usage_progress.c
        counted = exists().where(*(days[name] == usage[name] for name in daily.Place._fields))
        async with self._database.write() as connection:
            read = (await connection.execute(select(progress.applied_at, progress.pruned_at))).one()
            before = min(self._database.now_ms() - keep_ms, read.applied_at // 1_000_000)
            old = select(usage.id).where(usage.closed_at < before, counted).order_by(usage.closed_at).limit(most)
            gone = int((await connection.execute(delete(schema.usage).where(usage.id.in_(old)))).rowcount)
            if gone:
                pruned_at = max(read.pruned_at, before)
                await connection.execute(update(schema.usage_progress).values(pruned_at=pruned_at))
            return gone

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

    async def sums(self, since_day: int) -> tuple[Progress, tuple[DaySum, ...]]:
        """Tokens by tenant, key, model and day from `since_day` on, and how far the stream had been read for them."""
        async with self._database.read() as connection:
            progress = Progress(*(await connection.execute(select(*_PROGRESS))).one())
            return progress, await _day_sums(connection, since_day)

    async def summed(self, since_day: int, ids: Sequence[str]) -> tuple[tuple[DaySum, ...], set[str]]:
        """The same sums, and which of these requests are in them already: both as of one moment."""
        async with self._database.read() as connection:
            sums = await _day_sums(connection, since_day)
            known: set[str] = set()
            for at in range(0, len(ids), _IDS_AT_ONCE):
                some = schema.usage.c.id.in_(ids[at : at + _IDS_AT_ONCE])
                known.update(row.id for row in await connection.execute(select(schema.usage.c.id).where(some)))
            return sums, known

    async def report(self, question: Question, *, after: Sequence[str | int] | None = None, most: int = 1000) -> Page:
        """Sums by day, grouped and filtered: a page of at most `most` groups, behind the group `after`."""
        async with self._database.read() as connection:
            return await report(connection, question, after=after, most=most)

    async def own(self, tenant_id: str, first: int, most: int) -> tuple[Page, Page]:
        """One tenant's usage since the day `first`, by day and by day and model: the latest first, of each `most`."""
        question = Question(("day",), tenant_id=tenant_id, first=first)
        async with self._database.read() as connection:
            days = await report(connection, question, most=most, backwards=True)
            split = msgspec.structs.replace(question, by=("day", "model"))
            return days, await report(connection, split, most=most, backwards=True)

    # ------------------------------------------------------------------------------------------------ to be verified

    async def found(self, ids: Iterable[str]) -> tuple[dict[str, UsageRow], int]:
        """The rows of these requests, and before when rows may have been deleted (ms since 1970)."""
        async with self._database.read() as connection:
            pruned_at = (await connection.execute(select(schema.usage_progress.c.pruned_at))).scalar_one()
            rows = await connection.execute(select(*_USAGE).where(schema.usage.c.id.in_(list(ids))))
            return {row.id: UsageRow(*row) for row in rows}, int(pruned_at)

    async def page(self, after: tuple[int, str], most: int) -> tuple[UsageRow, ...]:
        """The next rows in the order in which they closed, behind `after`: the time and the id of the last one."""
        place = tuple_(schema.usage.c.closed_at, schema.usage.c.id)
        behind = place > tuple_(literal(after[0]), literal(after[1]))
        query = select(*_USAGE).where(behind).order_by(schema.usage.c.closed_at, schema.usage.c.id).limit(most)
        async with self._database.read() as connection:
            return tuple(UsageRow(*row) for row in await connection.execute(query))

    async def tenants(self) -> tuple[str, ...]:
        """The ids of all that have used anything."""
        everybody = union(select(schema.usage.c.tenant_id), select(schema.usage_days.c.tenant_id)).order_by("tenant_id")
        async with self._database.read() as connection:
            return tuple((await connection.execute(everybody)).scalars())

    async def counted(self, tenant_id: str) -> tuple[dict[daily.Place, daily.Sums], dict[daily.Place, daily.Sums], int]:
        """One tenant's sums, from the rows that are there and as they are kept; and before when rows may be deleted."""
        usage, days = schema.usage, schema.usage_days
        place = tuple(usage.c[name] for name in daily.Place._fields)
        async with self._database.read() as connection:
            pruned_at = (await connection.execute(select(schema.usage_progress.c.pruned_at))).scalar_one()
            failed = func.sum(case((usage.c.outcome.in_(FINISHED), 0), else_=1))
            sums = summed(connection, usage, func.count(), failed)
            rows = await connection.execute(
                select(*place, *sums).where(usage.c.tenant_id == tenant_id).group_by(*place)
            )
            kept = await connection.execute(
                select(*_PLACE, *(days.c[name] for name in daily.SUMS)).where(days.c.tenant_id == tenant_id)
            )
            return _sums_by_place(rows), _sums_by_place(kept), int(pruned_at)


def _sums_by_place(rows: Iterable[Any]) -> dict[daily.Place, daily.Sums]:
    width = len(daily.Place._fields)
    return {daily.Place(*row[:width]): daily.Sums(*sums_of(row[width:])) for row in rows}


def usage_row(closed: Closed) -> UsageRow:
    """The row of what was closed: one that any database takes, whatever a peer has put into its record."""
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
    row = {name: _sane(name, value) for name, value in row.items()}
    return UsageRow(**row | {"day": daily.day_of(close.day, closed.at_ms)})


async def _advance(connection: AsyncConnection, progress: Progress, after: Progress | None) -> int:
    """Move on, if nobody else has meanwhile; others wait behind this row. Returns before when rows were deleted, ms."""
    table = schema.usage_progress
    moved = update(table).values(msgspec.structs.asdict(progress)).returning(table.c.pruned_at)
    if after is not None:
        moved = moved.where(table.c.applied == after.applied, table.c.applied_at == after.applied_at)
    row = (await connection.execute(moved)).first()
    if row is None:
        raise StaleRecordError("another gateway has read the stream of usage on")
    return int(row.pruned_at)


async def _add_up(connection: AsyncConnection, rows: Sequence[UsageRow]) -> None:
    """Count these rows in their days. One at a time does, as each has moved the progress first."""
    sums = daily.folded((place_of(row), row) for row in rows)
    if not sums:
        return
    counted = _insert(connection, schema.usage_days)
    more = {name: _plus(schema.usage_days.c[name], counted.excluded[name]) for name in daily.SUMS}
    await connection.execute(
        counted.on_conflict_do_update(index_elements=_PLACE, set_=more),
        [place._asdict() | msgspec.structs.asdict(added) for place, added in sums.items()],
    )


def place_of(row: UsageRow) -> daily.Place:
    """Where a row is counted."""
    return daily.Place(row.tenant_id, row.day, row.key_id, row.model, row.version)


def _plus(column: ColumnElement[Any], more: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((column > daily.MOST - more, daily.MOST), else_=column + more)


async def _day_sums(connection: AsyncConnection, since_day: int) -> tuple[DaySum, ...]:
    days = schema.usage_days.c
    what = (days.tenant_id, days.key_id, days.model, days.day)
    query = select(*what, func.sum(days.prompt + days.charged)).where(days.day >= since_day).group_by(*what)
    return tuple(DaySum(*row[:4], int(row[4])) for row in await connection.execute(query))


def _insert(connection: AsyncConnection, table: Any) -> Any:
    """An insert that can say what to do with a row that is there: the same words in both databases."""
    made: Insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
    return made


def _sane(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "")[: _LENGTHS[name]]
    if isinstance(value, float):
        return min(max(value, 0.0), float(daily.MOST)) if math.isfinite(value) else 0.0
    return min(max(value, 0), daily.MOST)
