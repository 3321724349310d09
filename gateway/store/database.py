"""What the tables share: transactions, errors in our words, and changes that are counted and on record."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.core import audit
from gateway.store import schema
from gateway.store.engine import deadline_s, reading, writing
from gateway.store.rows import Actor
from shared.errors import ConflictError, StoreError
from shared.settings_schema import mask_url

_LAST = select(schema.audit.c.sequence, schema.audit.c.hash).order_by(schema.audit.c.sequence.desc()).limit(1)
_NEXT = update(schema.revision).values(number=schema.revision.c.number + 1).returning(schema.revision.c.number)


class Database:
    """One engine, used by the tables. `now_ms` is the store's clock: milliseconds since 1970, UTC."""

    def __init__(self, engine: AsyncEngine, pepper: bytes, now_ms: Callable[[], int], url: str) -> None:
        self.engine = engine
        self.pepper = pepper
        self.now_ms = now_ms
        self.on_change: Callable[[int], None] = lambda _revision: None
        """Called with the revision of each change that this process has made, once it is kept."""
        self._sealing = audit.sealing_key(pepper)
        self._shown_url = mask_url(url)

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """One transaction whose statements all see the same moment."""
        async with self._transaction(reading(self.engine)) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction that writes what is no operator's change."""
        async with self._transaction(writing(self.engine)) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def change(
        self, by: Actor, action: str, *, conflict: str = "the change contradicts another one"
    ) -> AsyncIterator["Change"]:
        """One transaction with an operator's change: it moves the revision, and says on record what it did.

        The revision is moved first, so that changes queue up behind its row in every database.

        Raises:
            ConflictError: With `conflict`, if a constraint of the tables is broken.
            RuntimeError: If nothing was put on record.
        """
        try:
            async with self._transaction(writing(self.engine)) as connection:
                number = int((await connection.execute(_NEXT)).scalar_one())
                change = Change(connection, self.now_ms(), by, action, self._sealing)
                yield change
                if not change.recorded:
                    raise RuntimeError(f"{action} changed the store without a record")
        except IntegrityError:
            raise ConflictError(conflict) from None
        self.on_change(number)

    @contextlib.asynccontextmanager
    async def _transaction(self, options: dict[str, Any]) -> AsyncIterator[AsyncConnection]:
        with self.translated():
            async with asyncio.timeout(deadline_s(self.engine)), self.engine.connect() as connection:
                await connection.execution_options(**options)
                async with connection.begin():
                    yield connection

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """The database's errors as ours; a broken constraint passes, as only the caller knows what it means."""
        try:
            yield
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError) as error:
            reason = str(getattr(error, "orig", None) or error) or "it gave no answer in time"
            raise StoreError(f"cannot use the store at {self._shown_url}: {reason}") from error


class Change:
    """A change under way. `now` is its time, ms since 1970."""

    def __init__(self, connection: AsyncConnection, now: int, by: Actor, action: str, sealing: bytes) -> None:
        self.connection = connection
        self.now = now
        self.recorded = 0
        self._by = by
        self._action = action
        self._sealing = sealing

    async def record(
        self, kind: str, object_id: str, object_name: str, before: msgspec.Struct | None, after: msgspec.Struct | None
    ) -> None:
        """Put on record what became of one object, in this transaction. Rows never hold a secret, nor does the log."""
        last = (await self.connection.execute(_LAST)).first()
        sequence, previous = (0, audit.GENESIS) if last is None else (int(last.sequence), bytes(last.hash))
        entry = audit.Entry(
            sequence=sequence + 1,
            at=self.now,
            actor_kind=self._by.kind,
            actor_id=self._by.id,
            actor_name=self._by.name,
            source=self._by.source,
            action=self._action,
            kind=kind,
            object_id=object_id,
            object_name=object_name,
            before=_json(before),
            after=_json(after),
        )
        sealed = audit.seal(self._sealing, previous, entry)
        await self.connection.execute(
            insert(schema.audit).values(**msgspec.structs.asdict(entry), previous=sealed.previous, hash=sealed.hash)
        )
        self.recorded += 1


def _json(row: msgspec.Struct | None) -> str | None:
    return None if row is None else msgspec.json.encode(row).decode()
