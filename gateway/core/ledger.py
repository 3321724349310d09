"""Usage records, folded: which request is open, which is closed and how, and which ones nobody else will close.

Every reader of the stream folds the same records in the same order to the same result, however often a record was sent.
A record is known by its author (from the subject), its attempt, its kind and its number; the first close of a request
in stream order is the one that counts, for every reader, its author included.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal

import msgspec

from gateway.core.backlog import Recent
from shared.wire import Check, Close, Open, Orphan, UsageRecord

CLOSED_KEPT = 100_000
"""Requests whose late repetitions are recognised here; older ones are, in the store."""
UNOPENED_S = 60.0
"""How long a request that was heard of waits for its open, which may have to be sent again; after that it never comes:
the request was over before this reader began."""
UNOPENED_KEPT = 4_096
"""Requests that were heard of without an open, most of which a peer may have made up."""
LOST = "gateway_lost"
"""The outcome of a request that the reconciler closed."""

Role = Literal["g", "w"]


class Entry(msgspec.Struct, frozen=True):
    """A record with its place in the stream, the server's time of it (ms since 1970), and who wrote it."""

    sequence: int
    at_ms: int
    role: Role
    author: str
    record: UsageRecord


class Closed(msgspec.Struct, frozen=True):
    """A request is over. `entry` is where that stands, `close` says how."""

    sequence: int
    at_ms: int
    close: Close


class _Choice(msgspec.Struct):
    attempt: int
    wid: str
    orphans: dict[tuple[int, str], Orphan] = {}


class _Request(msgspec.Struct):
    """What is known of a request that is open."""

    first: int
    open: Open | None = None
    author: str = ""
    choices: dict[int, _Choice] = {}
    check: Check | None = None
    seen: set[tuple[Role, str, str, str, int]] = set()
    closing: bool = False


class Ledger:
    """The fold. `deduplicate` off is for the tests that show what it is for."""

    def __init__(self, *, deduplicate: bool = True) -> None:
        self.repeated = 0
        self.refused = 0
        """Records that their author had no right to, or that make no sense."""
        self._deduplicate = deduplicate
        self._requests: dict[str, _Request] = {}
        self._unopened: dict[str, float | None] = {}  # since when; None until the next look
        self._closed = Recent(CLOSED_KEPT)

    def __len__(self) -> int:
        return len(self._requests)

    def apply(self, entry: Entry) -> Closed | None:
        """Fold the next record in; what it closes, if it closes something."""
        record = entry.record
        if (entry.role == "w") is not isinstance(record, Orphan):
            self.refused += 1
            return None
        rid, _, part = record.aid.partition(".")
        if rid in self._closed:
            self.repeated += 1
            return None
        if isinstance(record, Close):
            return self._close(rid, entry.sequence, entry.at_ms, record)
        request = self._request(rid, entry.sequence)
        key = (entry.role, entry.author, record.aid, type(record).__name__, record.n)
        if self._deduplicate and key in request.seen:
            self.repeated += 1
            return None
        request.seen.add(key)
        if isinstance(record, Check):
            self._check(request, record)
            return None
        choice, _, attempt = part.partition(".")
        if not (choice.isdecimal() and attempt.isdecimal()):
            self.refused += 1
        elif isinstance(record, Open):
            self._open(request, entry.author, record, int(choice), int(attempt))
            self._unopened.pop(rid, None)
        else:
            kept = request.choices.setdefault(int(choice), _Choice(-1, ""))
            kept.orphans.setdefault((int(attempt), entry.author), record)
        return None

    @property
    def open(self) -> int:
        """How many requests are open."""
        return len(self._requests) - len(self._unopened)

    def look(self, now: float) -> None:
        """Forget what has waited too long for its open. `now` in seconds, on a clock that never runs backwards."""
        for rid, since in list(self._unopened.items()):
            if since is None:
                self._unopened[rid] = now
            elif now >= since + UNOPENED_S:
                del self._unopened[rid], self._requests[rid]

    def forget(self, rid: str) -> None:
        """The store has a row of that request: what was heard of it since were repetitions."""
        self._requests.pop(rid, None)
        self._unopened.pop(rid, None)
        self._closed.add(rid)

    def floor(self, position: int) -> int:
        """Where a reader that knows nothing must begin, to know what this one knows after `position`."""
        return next((request.first for request in self._requests.values()), position + 1)

    def renumbered(self) -> None:
        """The stream was made anew: sequences start over."""
        for request in self._requests.values():
            request.first = 1

    def opens(self) -> Iterator[tuple[str, Open]]:
        """All that is open, by its own id, as it was opened last."""
        for rid, request in self._requests.items():
            if request.open is not None:
                yield rid, request.open

    def gateways(self) -> Iterator[tuple[str, str]]:
        """Gateway and epoch of all that is open."""
        for request in self._requests.values():
            if request.open is not None:
                yield request.author, request.open.gep

    def unclosed(self, dead: Callable[[str, str], bool], most: int) -> list[str]:
        """At most `most` requests whose gateway is `dead(gid, gep)` and whose close is not under way."""
        found = (
            rid
            for rid, request in self._requests.items()
            if request.open is not None and not request.closing and dead(request.author, request.open.gep)
        )
        return list(islice(found, most))

    def reconcile(self, rid: str) -> Close | None:
        """The close of a request whose gateway is dead; who publishes it numbers it. None if it is closed by now.

        Charged is what the worker knows the gateway to have had, or what the gateway last said that its client had,
        whichever is more; of an answer that was not streamed, nothing had been delivered.
        """
        request = self._requests.get(rid)
        if request is None or request.open is None:
            return None
        request.closing = True
        return _reconciled(rid, request, request.open)

    def unpublished(self, rid: str) -> None:
        """The close of that request did not get out: it is to be tried again."""
        if rid in self._requests:
            self._requests[rid].closing = False

    def _request(self, rid: str, sequence: int) -> _Request:
        request = self._requests.get(rid)
        if request is None:
            request = self._requests[rid] = _Request(sequence)
            self._unopened[rid] = None
            if len(self._unopened) > UNOPENED_KEPT:
                oldest = next(iter(self._unopened))
                del self._unopened[oldest], self._requests[oldest]
                self.refused += 1
        return request

    def _open(self, request: _Request, author: str, record: Open, choice: int, attempt: int) -> None:
        if request.open is not None and (author, record.gep) != (request.author, request.open.gep):
            self.refused += 1
            return
        request.author, request.open = author, record
        kept = request.choices.setdefault(choice, _Choice(-1, ""))
        if attempt >= kept.attempt:
            kept.attempt, kept.wid = attempt, record.wid

    def _check(self, request: _Request, record: Check) -> None:
        # A lower number is an earlier one that was repeated.
        if request.check is None or record.n > request.check.n:
            request.check = record

    def _close(self, rid: str, sequence: int, at_ms: int, record: Close) -> Closed:
        if self._deduplicate:
            self._closed.add(rid)
        self._requests.pop(rid, None)
        self._unopened.pop(rid, None)
        return Closed(sequence, at_ms, record)


def _reconciled(rid: str, request: _Request, opened: Open) -> Close:
    check = request.check or Check(n=0, gep="", aid=rid, prompt=0, charged=0)
    last_words = [
        choice.orphans[choice.attempt, choice.wid]
        for choice in request.choices.values()
        if (choice.attempt, choice.wid) in choice.orphans
    ]
    acked = sum(orphan.acked for orphan in last_words) if opened.streamed else 0
    charged = max(acked, check.charged)
    return Close(
        n=0,
        gep="",
        aid=rid,
        tenant=opened.tenant,
        key=opened.key,
        model=opened.model,
        version=opened.version,
        prompt=check.prompt,
        cached=0,
        charged=charged,
        generated=max(charged, sum(orphan.generated for orphan in last_words)),
        accepted=0,
        proposed=0,
        device_seconds=0.0,
        queue_ms=0.0,
        prefill_ms=0.0,
        decode_ms=0.0,
        outcome=LOST,
        label=opened.label,
        day=opened.day,
    )
