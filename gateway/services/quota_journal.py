"""What was used before this gateway started: sums of the ledger, and on top of them the records that came later.

The journal of quotas is the stream of usage records itself. It is read from where the ledger's sums may end, and then
the sums, together with which of the requests that were read are in them already: each counts once. Requests that are
still open keep their part of the budgets until they close; rate windows are filled anew by the last minute of records,
each as old as the server says.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Protocol

import structlog

from gateway.core.accounts import Periods
from gateway.core.ledger import Closed, Ledger
from gateway.services.quotas import Allowances
from gateway.services.usage_reader import Stored, UsageReader
from gateway.store.rows import DaySum, Progress
from shared.errors import BusError, NoStreamError, StoreError
from shared.wire import Close, Open

log = structlog.get_logger("quotas")

WINDOW_S = 60.0
AGAIN_S = 0.5
NEVER_MADE = 6
"""So many looks in a row, half a second apart, that find no stream where none was ever read."""
_FIRST_DAY = 40
"""Days back that a month can begin, and a day in a zone far west, with room to spare."""


class Sums(Protocol):
    """What is needed of the table of usage."""

    async def progress(self) -> Progress:
        """How far the stream has been read."""
        ...

    async def summed(self, since_day: int, ids: Sequence[str]) -> tuple[tuple[DaySum, ...], set[str]]:
        """Tokens by tenant, key, model and day from `since_day` on, and which of these requests are in them."""
        ...


class QuotaJournal:
    """Restores an `Allowances` once, then keeps what an earlier life left open until it closes."""

    def __init__(
        self,
        quotas: Allowances,
        table: Sums,
        reader: UsageReader,
        wall_clock: Callable[[], float],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.records = 0
        """Records that were folded at the start."""
        self._quotas = quotas
        self._table = table
        self._reader = reader
        self._wall_clock = wall_clock
        self._sleep = sleep

    async def run(self) -> None:
        """Restore, however long store and bus keep it waiting.

        A stream that was never made keeps nobody waiting for long: it has no records.
        """
        troubled, missing = False, 0
        while not self._quotas.restored:
            try:
                await self.restore(made=missing < NEVER_MADE)
            except NoStreamError:
                # A server that has just started says the same of a stream that it has still to recover.
                missing += 1
                await self._sleep(AGAIN_S)
            except (StoreError, BusError) as error:
                if not troubled:
                    log.warning("quotas_wait", error=str(error))
                troubled = True
                await self._sleep(AGAIN_S)
        log.info("quotas_restored", records=self.records)

    async def restore(self, *, made: bool = True) -> None:
        """Read everything, then apply it in one go: what failed half way has changed nothing.

        Not `made`: the stream has been missing, and if the ledger never read a record of it, it never had one.

        Raises:
            StoreError: The ledger cannot be read.
            BusError: Nor can the stream; NoStreamError if it is missing.
        """
        now = self._wall_clock()
        progress = await self._table.progress()
        try:
            recent = await self._reader.since(datetime.fromtimestamp(now - WINDOW_S, UTC), 1)
            stored = await self._read(min(progress.floor, recent[0].sequence if recent else progress.floor))
        except NoStreamError:
            if made or progress.applied:
                raise
            stored = []
        ledger = Ledger()
        closed = [end for one in stored if one.entry is not None and (end := ledger.apply(one.entry)) is not None]
        opened = dict(ledger.opens())
        today = datetime.fromtimestamp(now, UTC).toordinal()
        sums, known = await self._table.summed(today - _FIRST_DAY, [*opened, *(one.close.aid for one in closed)])
        self.records = len(stored)
        self._apply(now, sums, known, closed, opened)

    def closed(self, closed: Closed) -> None:
        """A request has closed, as the ledger reads it: one of an earlier life settles with what it used."""
        self._quotas.close(closed.close)

    async def _read(self, sequence: int) -> list[Stored]:
        found: list[Stored] = []
        while batch := await self._reader.read(sequence):
            found += batch
            sequence = batch[-1].sequence + 1
        return found

    def _apply(
        self,
        now: float,
        sums: Iterable[DaySum],
        known: set[str],
        closed: Iterable[Closed],
        opened: dict[str, Open],
    ) -> None:
        quotas = self._quotas
        quotas.restoring(WINDOW_S)  # accounts begin with full windows then
        for row in sums:
            quotas.used_before((row.tenant_id, row.key_id, row.model), periods(row.day), row.tokens)
        for one in closed:
            close = one.close
            if close.aid not in known:
                tokens = close.prompt + close.charged
                quotas.used_before((close.tenant, close.key, close.model), _periods_of(close, one.at_ms), tokens)
            age_s = max(0.0, now - one.at_ms / 1000)
            if age_s < WINDOW_S:
                quotas.restoring(age_s)
                quotas.window_before(close)
                quotas.restoring(WINDOW_S)
        quotas.restoring(0)
        for rid, record in opened.items():
            if rid in known:  # heard of again, long after its end
                continue
            quotas.open_before(rid, record, periods(record.day or datetime.fromtimestamp(now, UTC).toordinal()))
        quotas.restored = True


def periods(day: int) -> Periods:
    """The periods of a day of a tenant's calendar, by its ordinal."""
    at = date.fromordinal(max(1, day))
    return Periods(day, at.year * 12 + at.month - 1)


def _periods_of(close: Close, at_ms: int) -> Periods:
    return periods(close.day or datetime.fromtimestamp(at_ms / 1000, UTC).toordinal())
