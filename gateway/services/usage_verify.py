"""Reads stream and store side by side, for `core.verify` to compare; changes neither, and may run beside gateways."""

from collections.abc import Iterable

import msgspec

from gateway.core.ledger import Ledger
from gateway.core.verify import Difference, Journal, sums, whole_from
from gateway.services.ledger import same_stream
from gateway.services.usage_reader import Stored, UsageReader
from gateway.store.rows import Progress
from gateway.store.usage import UsageTable, usage_row

TOLD = 1000
"""Differences that are listed; the rest is counted."""
_PAGE = 1000


class Verdict(msgspec.Struct):
    """What was compared, and what differs. Times in ms since 1970.

    The stream could be compared from the record `first` on, which is of `first_at`, up to `applied`; older ones it has
    dropped. `first` is 0 where nothing of it was compared. Sums are exact from the day `whole_from` on (an ordinal):
    of earlier ones rows may have been deleted.
    """

    first: int = 0
    first_at: int = 0
    applied: int = 0
    requests: int = 0
    pruned: int = 0
    older: int = 0
    places: int = 0
    whole_from: int = 0
    different: int = 0
    differences: list[Difference] = []

    def add(self, found: Iterable[Difference]) -> None:
        """Count differences, and keep the first of them."""
        for one in found:
            self.different += 1
            if len(self.differences) < TOLD:
                self.differences.append(one)


async def verify(table: UsageTable, reader: UsageReader | None) -> Verdict:
    """Compare rows with the stream, if there is a `reader`, and sums with rows. Raises StoreError, BusError."""
    verdict = Verdict()
    if reader is not None:
        await _rows(table, reader, verdict)
    for tenant in await table.tenants():
        counted, kept, pruned_at = await table.counted(tenant)
        verdict.places += len(kept)
        verdict.whole_from = whole_from(pruned_at)
        verdict.add(sums(counted, kept, pruned_at))
    return verdict


async def _rows(table: UsageTable, reader: UsageReader, verdict: Verdict) -> None:
    progress = await table.progress()
    first = await reader.read(1, 1)
    if not progress.applied or not await _is_applied(reader, progress, verdict):
        return
    verdict.first, verdict.first_at, verdict.applied = first[0].sequence, first[0].at_ns // 1_000_000, progress.applied
    journal, ledger, place = Journal(verdict.first, verdict.first_at, progress.applied), Ledger(), 1
    while place <= progress.applied and (stored := await reader.read(place)):
        place = stored[-1].sequence + 1
        expected = [usage_row(closed) for one in stored if one.entry and (closed := ledger.apply(one.entry))]
        found, pruned_at = await table.found(row.id for row in expected)
        verdict.add(journal.closed(expected, found, pruned_at))
    after = (verdict.first_at, "")
    while rows := await table.page(after, _PAGE):
        after = (rows[-1].closed_at, rows[-1].id)
        verdict.add(journal.unknown(rows))
    verdict.requests, verdict.pruned, verdict.older = journal.compared, journal.pruned, journal.older


async def _is_applied(reader: UsageReader, progress: Progress, verdict: Verdict) -> bool:
    """Whether this is the stream that the rows came from."""
    anchor: list[Stored] = await reader.read(progress.applied, 1)
    if same_stream(anchor, progress.applied, progress.applied_at):
        return True
    detail = f"it is not the one that was read up to record {progress.applied}: nothing of it can be compared"
    verdict.add([Difference("stream", "the stream of usage records", detail)])
    return False
