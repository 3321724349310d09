"""The audit log, read: in pages, and from end to end to see whether anybody tampered with it."""

from collections.abc import Callable
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, and_, select, true

from gateway.core import audit
from gateway.core.audit import Broken, Entry, Sealed
from gateway.store import schema
from gateway.store.database import Database

_AT_ONCE: Final = 1000
_LOG: Final = schema.audit.c
_COLUMNS: Final = tuple(_LOG[name] for name in Entry.__struct_fields__)
_HEAD: Final = select(_LOG.sequence, _LOG.hash).order_by(_LOG.sequence.desc()).limit(1)


class Filter(msgspec.Struct, frozen=True):
    """Which entries; what is `None` does not matter. `since` and `until` in ms since 1970, the latter excluded."""

    kind: str | None = None
    object_id: str | None = None
    action: str | None = None
    actor: str | None = None
    since: int | None = None
    until: int | None = None


class Head(msgspec.Struct, frozen=True):
    """The last entry: its number, and its seal in hexadecimal. An empty log has number 0."""

    sequence: int
    seal: str


class Verdict(msgspec.Struct, frozen=True):
    """What a check of the whole log has found: how many entries hold, the head, and the first that does not hold."""

    entries: int
    head: Head
    broken: Broken | None


class AuditTable:
    """Every method raises `StoreError` when the database cannot be used. Entries are only made by `Database.change`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, which: Filter, *, before: int | None, most: int) -> tuple[Entry, ...]:
        """The newest entries that are older than number `before`, at most `most`."""
        query = select(*_COLUMNS).where(_which(which)).order_by(_LOG.sequence.desc()).limit(most)
        if before is not None:
            query = query.where(_LOG.sequence < before)
        async with self._database.read() as connection:
            return tuple(Entry(*row) for row in await connection.execute(query))

    async def head(self) -> Head:
        """The last entry's number and seal."""
        async with self._database.read() as connection:
            row = (await connection.execute(_HEAD)).first()
        return _head(None if row is None else (row.sequence, row.hash))

    async def verify(
        self, *, expected: Head | None = None, watch: Callable[[int], None] = lambda _checked: None
    ) -> Verdict:
        """Check every entry against the one before it, from the first on, holding a thousand at a time.

        `expected` is a head that was noted elsewhere: its entry must be there, with that seal. `watch` is told how many
        are checked.
        """
        key, at, previous = audit.sealing_key(self._database.pepper), 0, audit.GENESIS
        broken: Broken | None = None
        while broken is None and (chain := await self._after(at)):
            broken = audit.verify(key, chain, sequence=at, previous=previous)
            if broken is None and expected is not None:
                broken = _differs(expected, chain)
            if broken is None:
                at, previous = chain[-1].entry.sequence, chain[-1].hash
                watch(at)
        if broken is None and expected is not None and expected.sequence > at:
            broken = Broken(at + 1, f"the log ends at entry {at}; entry {expected.sequence} was there")
        holds = at if broken is None else broken.sequence - 1
        return Verdict(holds, _head((at, previous)), broken)

    async def _after(self, sequence: int) -> list[Sealed]:
        query = select(*_COLUMNS, _LOG.previous, _LOG.hash).where(_LOG.sequence > sequence).order_by(_LOG.sequence)
        async with self._database.read() as connection:
            rows = await connection.execute(query.limit(_AT_ONCE))
            return [Sealed(Entry(*row[:-2]), bytes(row.previous), bytes(row.hash)) for row in rows]


def _head(last: tuple[int, bytes] | None) -> Head:
    sequence, seal = last or (0, audit.GENESIS)
    return Head(int(sequence), bytes(seal).hex())


def _differs(expected: Head, chain: list[Sealed]) -> Broken | None:
    for sealed in chain:
        if sealed.entry.sequence == expected.sequence and sealed.hash.hex() != expected.seal.lower():
            return Broken(expected.sequence, f"entry {expected.sequence} is not the one whose seal was noted")
    return None


def _which(which: Filter) -> ColumnElement[bool]:
    wanted: list[ColumnElement[bool]] = []
    for column, value in (
        (_LOG.kind, which.kind),
        (_LOG.object_id, which.object_id),
        (_LOG.action, which.action),
        (_LOG.actor_name, which.actor),
    ):
        if value is not None:
            wanted.append(column == value)
    if which.since is not None:
        wanted.append(_LOG.at >= which.since)
    if which.until is not None:
        wanted.append(_LOG.at < which.until)
    return and_(true(), *wanted)
