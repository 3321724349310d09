"""Keeps the table of usage: reads the stream, folds it, writes rows; closes what a dead gateway left open.

One gateway at a time does this, whoever holds the lease in the store; two at once would do no harm. What cannot be
written waits in the stream: while the database is away nothing is read, and when it is back it goes on where it was.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from gateway.core.gateways import Gateways
from gateway.core.ledger import Closed, Ledger
from gateway.services.usage_reader import Stored, UsageReader
from gateway.services.usage_writer import UsageWriter
from gateway.store.rows import Progress
from gateway.store.usage import UsageTable
from shared.errors import BusError, StaleRecordError, StoreError

log = structlog.get_logger("ledger")

LEASE: Final = "usage"
LEASE_MS: Final = 10_000
POLL_S = 0.25
RENEW_S = 3.0
RECONCILE_S = 1.0
TROUBLE_S = 1.0
PRUNE_S = 60.0
PRUNED_AT_ONCE = 500
"""Rows deleted in one transaction, for which all others wait."""
_ASK_ABOUT = 500
_DAY_MS = 86_400_000


class Keeper:
    """The reader of the stream that writes. `clock` is in seconds and never runs backwards.

    Rows of single requests are deleted after `keep_days`; 0 keeps them for ever.
    `reconciling` off is for the tests that show what the reconciler is for.
    """

    def __init__(  # noqa: PLR0917 - its neighbours, once each
        self,
        gid: str,
        table: UsageTable,
        reader: UsageReader,
        writer: UsageWriter,
        gateways: Gateways,
        clock: Callable[[], float],
        *,
        keep_days: int = 0,
        reconciling: bool = True,
    ) -> None:
        self.holding = False
        self.position = 0
        self.written = 0
        self.reconciled = 0
        self.gaps = 0
        """Records that the stream had dropped, for want of room, before they were read."""
        self.pruned = 0
        self.ledger = Ledger()
        self.on_closed: Callable[[Closed], None] = lambda _closed: None
        """Called with each request that closes, as the stream has it."""
        self._gid = gid
        self._table = table
        self._reader = reader
        self._writer = writer
        self._gateways = gateways
        self._clock = clock
        self._keep_ms = keep_days * _DAY_MS
        self._reconciling = reconciling
        self._progress = Progress()
        self._applied = 0  # of this stream
        self._at_ns = 0
        self._unwritten: list[Closed] = []
        self._dirty = False
        self._renew = self._reconcile = self._prune = clock()
        self._troubled = False

    async def run(self) -> None:
        """Keep the table until cancelled. Trouble with the store or the bus is waited out."""
        while True:
            try:
                more = await self.turn()
            except (StoreError, BusError) as error:
                if not self._troubled:
                    log.warning("ledger_waits", error=str(error))
                self._troubled = True
                await asyncio.sleep(TROUBLE_S)
                continue
            if self._troubled:
                log.info("ledger_goes_on", position=self.position)
            self._troubled = False
            if not more:
                await asyncio.sleep(POLL_S if self.holding else RECONCILE_S)

    async def close(self) -> None:
        """Write what has come by now, and let another gateway take over at once. Never raises."""
        with contextlib.suppress(StoreError, BusError):
            if self.holding:
                while await self.turn():
                    pass
                await self._table.release(LEASE, self._gid)

    async def turn(self) -> bool:
        """One round: lease, read, fold, write, reconcile. True if more may be waiting. Raises StoreError, BusError."""
        if not await self._leased():
            return False
        await self._write()  # what an earlier round could not
        stored = await self._read()
        for one in stored:
            self._fold(one)
        await self._write()
        now = self._clock()
        if now >= self._reconcile and not stored:  # only who has read everything knows what is still open
            self._reconcile = now + RECONCILE_S
            await self._close_for_the_dead(now)
        if self._keep_ms and now >= self._prune and not stored:
            gone = await self._table.prune(self._keep_ms, PRUNED_AT_ONCE)
            self.pruned += gone
            self._prune = now + (POLL_S if gone == PRUNED_AT_ONCE else PRUNE_S)
        return bool(stored)

    async def _leased(self) -> bool:
        now = self._clock()
        if self.holding and now < self._renew:
            return True
        held = await self._table.lease(LEASE, self._gid, LEASE_MS)
        self._renew = now + RENEW_S
        if held and not self.holding:
            await self._begin()
            log.info("ledger_held", position=self.position)
        self.holding = held
        return held

    async def _begin(self) -> None:
        """Go back to the first record of what is still open; the rows that exist already stay as they are."""
        progress = self._progress = await self._table.progress()
        self.ledger, self._unwritten, self._dirty = Ledger(), [], False
        anchor = await self._reader.read(max(progress.applied, 1), 1)
        if progress.applied and not same_stream(anchor, progress.applied, progress.applied_at):
            log.warning("usage_stream_is_new", applied=progress.applied)
            progress = Progress()
        self._applied = progress.applied
        self.position, self._at_ns = progress.floor - 1, 0

    async def _read(self) -> list[Stored]:
        """What comes after our position. The record there is read again: it tells whether this is still the stream."""
        anchored = self.position > 0 and self._at_ns > 0
        stored = await self._reader.read(self.position if anchored else self.position + 1)
        if anchored:
            if not same_stream(stored, self.position, self._at_ns):
                log.warning("usage_stream_is_new", applied=self.position)
                self.position, self._at_ns, self._applied = 0, 0, 0
                self.ledger.renumbered()
                return await self._read()
            stored = [one for one in stored if one.sequence > self.position]
        return stored

    def _fold(self, stored: Stored) -> None:
        if self.position and stored.sequence > self.position + 1:
            self.gaps += stored.sequence - self.position - 1
            log.error("usage_records_lost", first=self.position + 1, last=stored.sequence - 1)
        self.position, self._at_ns, self._dirty = stored.sequence, stored.at_ns, True
        if stored.entry is None:
            return
        closed = self.ledger.apply(stored.entry)
        if closed is not None:
            self._unwritten.append(closed)
            self.on_closed(closed)
        if stored.entry.role == "g":
            self._gateways.seen(self._clock(), stored.entry.author, getattr(stored.entry.record, "gep", ""))

    async def _write(self) -> None:
        if not self._dirty:
            return
        if self.position <= self._applied:  # all of it is in the table: the sums and their place stay together
            self._unwritten, self._dirty = [], False
            return
        progress = Progress(self.position, self._at_ns, self.ledger.floor(self.position))
        try:
            self.written += await self._table.record(self._unwritten, progress, after=self._progress)
        except StaleRecordError:
            self.holding = False  # somebody had the lease while we did not notice: begin where they left off
            raise
        self._progress = progress
        self._unwritten, self._dirty = [], False

    async def _close_for_the_dead(self, now: float) -> None:
        """Close what its gateway cannot. A request that has its row was only heard of again, and is forgotten."""
        self.ledger.look(now)
        self._gateways.forget(set(self.ledger.gateways()))
        orphaned = self.ledger.unclosed(lambda gid, gep: self._gateways.dead(now, gid, gep), _ASK_ABOUT)
        if not orphaned or not self._reconciling:
            return
        for rid in await self._table.known(orphaned):
            self.ledger.forget(rid)
        for rid in orphaned:
            close = self.ledger.reconcile(rid)
            if close is None:
                continue
            if self._writer.reconcile(close):
                self.reconciled += 1
                log.warning("usage_reconciled", aid=rid, request_id=close.label, charged=close.charged)
            else:
                self.ledger.unpublished(rid)


def same_stream(stored: list[Stored], sequence: int, at_ns: int) -> bool:
    """Whether the first of `stored`, asked for from `sequence` on, may be of the stream where that record was."""
    return bool(stored) and (stored[0].at_ns == at_ns if stored[0].sequence == sequence else stored[0].at_ns > at_ns)
