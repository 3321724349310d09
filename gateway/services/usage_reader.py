"""Reads the stream of usage records, in order, by number: no consumer that remembers, nothing to lose.

An answer is many messages of core NATS, any of which may be lost on the way (a connection that breaks in the middle, a
slow route). Each names the one before it, so that a hole is seen, and the question asked again.
"""

import asyncio
from datetime import UTC, datetime

import msgspec
import structlog

from gateway.core.ledger import Entry, Role
from shared import subjects, wire
from shared.bus import NO_RESPONDERS, Bus, Delivery
from shared.errors import BusError, NoStreamError

log = structlog.get_logger("usage")

BATCH = 256
_PATIENCE_S = 3.0
_END = 204
_NOTHING = 404
_AUTHOR_PLACE = 2  # ef.usage.g.<gid>


class Stored(msgspec.Struct, frozen=True):
    """A message of the stream: its number, the server's time of it (ns since 1970), and the record, if it is one."""

    sequence: int
    at_ns: int
    entry: Entry | None


class UsageReader:
    """One reader, one question at a time."""

    def __init__(self, bus: Bus) -> None:
        self.undecodable = 0
        self._bus = bus
        self._asked = 0
        self._got: list[Stored] = []
        self._last = 0  # in this answer
        self._answer: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Listen for answers."""
        await self._bus.subscribe(f"{self._bus.inbox}.l.*", self._on_message, stored=True)

    async def read(self, sequence: int, most: int = BATCH) -> list[Stored]:
        """At most `most` messages from `sequence` on, in order; none if there are none. Raises BusError.

        Numbers that are missing in between are missing in the stream: nothing of the answer was lost on its way.
        """
        return await self._ask({"seq": sequence, "batch": most})

    async def since(self, instant: datetime, most: int = BATCH) -> list[Stored]:
        """The same from the first message on that the stream got at `instant` or later, by the server's clock."""
        return await self._ask({"start_time": instant.astimezone(UTC).isoformat(), "batch": most})

    async def _ask(self, question: dict[str, object]) -> list[Stored]:
        self._asked += 1
        self._got, self._last = [], 0
        self._answer = asyncio.get_running_loop().create_future()
        question["next_by_subj"] = f"{subjects.PREFIX}.usage.>"
        try:
            await self._bus.publish(
                subjects.USAGE_READ, msgspec.json.encode(question), reply=f"{self._bus.inbox}.l.{self._asked}"
            )
            async with asyncio.timeout(_PATIENCE_S):
                await self._answer
        except TimeoutError:
            raise BusError("the stream of usage records does not answer") from None
        finally:
            self._answer = None
        return self._got

    async def _on_message(self, delivery: Delivery) -> None:
        if self._answer is None or self._answer.done() or subjects.last(delivery.subject) != str(self._asked):
            return  # of a question that was given up
        headers = delivery.headers or {}
        if delivery.status == _NOTHING:
            self._answer.set_result(None)
        elif delivery.status == _END:
            if self._follows(headers):
                self._answer.set_result(None)
        elif delivery.status:
            missing = delivery.status == NO_RESPONDERS
            what = "there is no such stream" if missing else f"status {delivery.status}"
            error = NoStreamError if missing else BusError
            self._answer.set_exception(error(f"cannot read usage records: {what}"))
        elif int(headers["Nats-Sequence"]) > self._last and self._follows(headers):
            self._got.append(self._stored(delivery, headers))
            self._last = self._got[-1].sequence

    def _follows(self, headers: dict[str, str]) -> bool:
        """Whether this comes right after what we have; if not, the answer fails (NATS ADR-31, batched get)."""
        if int(headers["Nats-Last-Sequence"]) == self._last:
            return True
        if self._answer is not None:
            self._answer.set_exception(BusError("a part of the usage records was lost on its way"))
        return False

    def _stored(self, delivery: Delivery, headers: dict[str, str]) -> Stored:
        sequence, at_ns = int(headers["Nats-Sequence"]), _nanoseconds(headers["Nats-Time-Stamp"])
        subject = headers["Nats-Subject"]
        role: Role = "w" if subject.split(".")[_AUTHOR_PLACE] == "w" else "g"
        try:
            record = _RECORD.decode(delivery.data)
        except msgspec.DecodeError as error:
            self.undecodable += 1
            log.warning("usage_record_refused", subject=subject, sequence=sequence, error=str(error))
            return Stored(sequence, at_ns, None)
        return Stored(sequence, at_ns, Entry(sequence, at_ns // 1_000_000, role, subjects.last(subject), record))


def _nanoseconds(stamp: str) -> int:
    """RFC 3339 with up to nine decimals and `Z`, as the server writes it."""
    whole, _, decimals = stamp.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole + "+00:00").timestamp())
    return seconds * 1_000_000_000 + int(decimals[:9].ljust(9, "0") or "0")


_RECORD = wire.decoder(wire.UsageRecord)
