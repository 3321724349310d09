"""The author of usage records: open before each job, check while it runs, close at the end.

Nothing here is ever waited for by a request. Records go out on the connection that the jobs take, so that an open comes
before its job; the stream's confirmation comes beside the request, and what was not confirmed is sent again, the same
bytes, from a bounded backlog.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from gateway.core.backlog import Backlog, Kind, Pending
from gateway.core.charging import Spent, Totals, totals
from gateway.services.streams import Attempt
from shared import subjects, wire
from shared.bus import Bus, Delivery
from shared.errors import BusError

log = structlog.get_logger("usage")

CHECK_TOKENS = 64
CHECK_S = 2.0
_LOOK_S = 0.25
_WAIT_S = 15.0
"""How long a close waits for the last word of a worker, which the protocol owes within 3 s, or 10 s on a dead bus."""
_LAST_WORDS_S = 2.0


class Bill(msgspec.Struct, eq=False, kw_only=True):
    """One request's account while it runs. `id` is ours and unique, `label` the one that the client knows."""

    id: str
    label: str
    tenant: str
    key: str
    streamed: bool
    day: int = 0
    reserved: int = 0
    strict: bool = False
    model: str = ""
    version: str = ""
    delivered: int = 0
    attempts: list[Attempt] = []
    outcome: str = ""
    queued_s: float = 0.0
    checked: int = 0
    due: float = 0.0  # of the next check; of the close, once there is an outcome


class _Word(msgspec.Struct):
    """What JetStream says to a publication."""

    seq: int = 0
    error: Any = None


class UsageWriter:
    """One per gateway process. `clock` is in seconds and never runs backwards."""

    def __init__(self, gid: str, gep: str, bus: Bus, clock: Callable[[], float]) -> None:
        self.backlog = Backlog()
        self.written = 0
        self.settled: Callable[[str, Totals], None] = lambda _request, _totals: None
        """What a request used is known, and for good."""
        self._subject = subjects.usage_of_gateway(gid)
        self._gep = gep
        self._bus = bus
        self._clock = clock
        self._n = 0
        self._bills: dict[str, Bill] = {}
        self._by_sid: dict[int, Bill] = {}
        self._outbox: list[Pending] = []
        self._work = asyncio.Event()
        self._moved = asyncio.Event()
        self._said_dropped = 0

    def __len__(self) -> int:
        return len(self._bills)

    # ----------------------------------------------------------------------------------------------------- the owner

    async def open(self) -> None:
        """Listen for confirmations."""
        await self._bus.listen(f"{self._bus.inbox}.u.*", self._on_word)

    async def run(self) -> None:
        """Send what waits, repeat what was not confirmed, check what runs; until cancelled."""
        looked = self._clock()
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._work.wait()
            except TimeoutError:
                pass
            await self.send()
            if self._clock() >= looked + _LOOK_S:
                looked = self._clock()
                await self.look(looked)

    async def close(self) -> None:
        """Close every bill, at the latest with what is known, and give the stream a moment to confirm. Never raises."""
        await self._until(lambda: not self._bills)
        for bill in list(self._bills.values()):
            self._settle(bill, bill.outcome or "shutdown")
        await self.send()
        await self._until(lambda: not self.backlog or self.backlog.blocked)
        if self.backlog:
            log.warning("usage_unconfirmed", records=len(self.backlog))

    def reconnected(self) -> None:
        """What was on its way when the connection broke may be lost."""
        self.backlog.reconnected()

    # ------------------------------------------------------------------------------------------------- for the steps

    async def opening(self, bill: Bill, attempt: Attempt, *, max_tokens: int | None) -> None:
        """An attempt is about to be sent: its record goes first, on the same connection."""
        if not bill.attempts:
            bill.due = self._clock() + CHECK_S
            self._bills[bill.id] = bill
        bill.attempts.append(attempt)
        self._by_sid[attempt.sid] = bill
        record = wire.Open(
            n=0,
            gep="",
            aid=attempt.aid,
            tenant=bill.tenant,
            key=bill.key,
            model=bill.model,
            version=bill.version,
            wid=attempt.wid,
            reserved=bill.reserved,
            max_tokens=max_tokens or 0,
            strict=bill.strict,
            day=bill.day,
            label=bill.label,
            streamed=bill.streamed,
        )
        pending = self._keep("open", bill.id, record)
        if pending is not None:
            await self._publish(pending)

    def delivered(self, bill: Bill, tokens: int) -> None:
        """The client's socket has taken so many tokens more."""
        bill.delivered += tokens
        if bill.delivered - bill.checked >= CHECK_TOKENS:
            self._check(bill, self._clock())

    def closing(self, bill: Bill, outcome: str, queued_s: float) -> None:
        """The request is over; its record is written once every worker has said its last word on it."""
        if not bill.attempts:  # no worker was asked: nothing was opened, nothing was used
            self.settled(bill.id, totals(outcome, 0, 0.0, []))
            return
        bill.outcome, bill.queued_s = outcome, queued_s
        bill.due = self._clock() + _WAIT_S
        self._settle_if_over(bill)

    def over(self, attempt: Attempt) -> None:
        """Nothing more will come of that attempt."""
        bill = self._by_sid.pop(attempt.sid, None)
        if bill is not None and bill.outcome:
            self._settle_if_over(bill)

    # -------------------------------------------------------------------------------------------------- for the ledger

    def reconcile(self, close: wire.Close) -> bool:
        """Close a request of a gateway that cannot any more. False if there was no room."""
        return self._queue("close", close.aid, close)

    # -------------------------------------------------------------------------------------------------- machinery

    async def send(self) -> None:
        """Publish what waits; while the connection is down it stays in the backlog."""
        self._work.clear()
        outbox, self._outbox = self._outbox, []
        if self._bus.connected:
            for pending in outbox:
                await self._publish(pending)

    async def look(self, now: float) -> None:
        """Check what has not been checked for 2 s, stop waiting for last words, repeat what was not confirmed."""
        for bill in [bill for bill in self._bills.values() if bill.due <= now]:
            if bill.outcome:
                self._settle(bill, bill.outcome)
            else:
                self._check(bill, now)
        await self.send()
        if self._bus.connected:
            for pending in self.backlog.due(now):
                await self._publish(pending)
        dropped = self.backlog.dropped.total()
        if dropped != self._said_dropped:
            self._said_dropped = dropped
            log.error("usage_dropped", **self.backlog.dropped)

    async def _until(self, done: Callable[[], bool]) -> None:
        """Until that is so, or nothing more is to be expected of anybody."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S if self._bus.connected else 0):
                while not done():
                    self._moved.clear()
                    await self._moved.wait()

    def _check(self, bill: Bill, now: float) -> None:
        bill.due = now + CHECK_S
        if bill.delivered == bill.checked:
            return
        bill.checked = bill.delivered
        prompt = max((attempt.accept.prompt_tokens for attempt in bill.attempts if attempt.accept), default=0)
        self._queue("check", bill.id, wire.Check(n=0, gep="", aid=bill.id, prompt=prompt, charged=bill.delivered))

    def _settle_if_over(self, bill: Bill) -> None:
        if all(attempt.sid not in self._by_sid for attempt in bill.attempts):
            self._settle(bill, bill.outcome)

    def _settle(self, bill: Bill, outcome: str) -> None:
        """Write the close."""
        self._bills.pop(bill.id, None)
        self._moved.set()
        for attempt in bill.attempts:
            self._by_sid.pop(attempt.sid, None)
        spent = [
            Spent(attempt.received, attempt.accept.prompt_tokens if attempt.accept else 0, attempt.terminal)
            for attempt in bill.attempts
        ]
        sums = totals(outcome, bill.delivered if bill.streamed else 0, bill.queued_s * 1000, spent)
        close = wire.Close(
            n=0,
            gep="",
            aid=bill.id,
            tenant=bill.tenant,
            key=bill.key,
            model=bill.model,
            version=bill.version,
            label=bill.label,
            day=bill.day,
            **msgspec.structs.asdict(sums),
        )
        self._queue("close", bill.id, close)
        self.settled(bill.id, sums)

    def _queue(self, kind: Kind, request: str, record: wire.Open | wire.Check | wire.Close) -> bool:
        pending = self._keep(kind, request, record)
        if pending is None:
            return False
        self._outbox.append(pending)
        self._work.set()
        return True

    def _keep(self, kind: Kind, request: str, record: wire.Open | wire.Check | wire.Close) -> Pending | None:
        """Number a record and keep it until it is confirmed; None if there is no room."""
        self._n += 1
        payload = wire.encode(replace(record, n=self._n, gep=self._gep))
        pending = Pending(self._n, kind, request, payload, 0.0)
        self.written += 1
        return pending if self.backlog.add(self._clock(), pending) else None

    async def _publish(self, pending: Pending) -> None:
        try:
            await self._bus.publish(self._subject, pending.payload, reply=f"{self._bus.inbox}.u.{pending.n}")
        except BusError as error:
            log.warning("usage_not_sent", error=str(error))

    def _on_word(self, delivery: Delivery) -> None:
        """A confirmation, a refusal, or word that there is no such stream."""
        n = subjects.last(delivery.subject)
        self._moved.set()
        word = _WORD.decode(delivery.data) if not delivery.status else _Word()
        if word.seq > 0 and n.isdecimal():
            self.backlog.confirmed(int(n))
            return
        if not self.backlog.blocked:
            log.error("usage_refused", status=delivery.status, error=word.error)
        self.backlog.refused()


_WORD = msgspec.json.Decoder(_Word)
