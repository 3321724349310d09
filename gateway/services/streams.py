"""Owner of all open streams: jobs out, credits out, frames in, events into the inboxes.

All decisions are `shared.protocol.GatewayEnd`'s; this shell feeds it, publishes what it says, and keeps the books that
the protocol does not need: which inbox an sid belongs to, and how many bytes wait for slow clients.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from gateway.core.fleet import Fleet
from gateway.services.inbox import Inbox
from shared import subjects, wire
from shared.bus import NO_RESPONDERS, Bus, Delivery
from shared.errors import BusError, HttpError, ProtocolError, UpstreamError
from shared.protocol import (
    Accepted,
    Deliver,
    GatewayEnd,
    Refused,
    ResendJob,
    SendCancel,
    SendCredit,
    Unanswered,
)
from shared.pump import Pump
from shared.settings import LimitSettings

log = structlog.get_logger("streams")

Answer = wire.Accept | wire.Nack | wire.Fail | None
"""A worker's answer to a job. None: it did not answer in time. Fail: it was lost before it began, nothing was made."""

_SWEEP_S = 1.0
_LOST = frozenset({"worker_lost", "worker_frozen"})
"""What the protocol says when nobody is there any more: the worker is not asked again until it announces itself."""


class Attempt(msgspec.Struct, eq=False):
    """One job on one worker. `answer` resolves once; `received` counts tokens; the terminal brings exact usage."""

    sid: int
    wid: str
    wep: str
    aid: str
    model: str
    choice: int
    inbox: Inbox
    payload: bytes
    headers: dict[str, str] | None
    answer: "asyncio.Future[Answer]"
    accept: wire.Accept | None = None
    received: int = 0
    cancelling: bool = False
    terminal: wire.End | wire.Fail | None = None


class Streams:
    """All streams of one gateway process."""

    def __init__(self, gid: str, gep: str, bus: Bus, fleet: Fleet, limits: LimitSettings) -> None:
        self.gid = gid
        self.gep = gep
        self.end = GatewayEnd(gid, gep)
        self.buffered_bytes = 0
        self.freed: Callable[[], None] = lambda: None
        self.ended: Callable[[Attempt], None] = lambda _attempt: None
        self.over: Callable[[Attempt], None] = lambda _attempt: None
        self._bus = bus
        self._fleet = fleet
        self._limits = limits
        self._attempts: dict[int, Attempt] = {}
        self._inboxes: dict[Inbox, Callable[[], None]] = {}
        self._outbox: list[SendCredit | SendCancel | ResendJob] = []
        self._pump: Pump[SendCredit | SendCancel | ResendJob] = Pump(self, self._carry_out)

    # ------------------------------------------------------------------------------------------------------- owner

    async def open(self) -> None:
        """Listen for frames and answers."""
        await self._bus.listen(subjects.frames(self.gid, "*"), self._on_frame)
        for what in ("j", "c"):
            await self._bus.listen(f"{self._bus.inbox}.{what}.>", self._on_answer)

    async def run(self) -> None:
        """Drive the protocol and watch slow clients, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump.run(), name="pump")
            group.create_task(self._sweep(), name="sweep")

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def connected(self) -> bool:
        """Our connection to the bus stands."""
        return self._bus.connected

    # --------------------------------------------------------------------------------------------------- for the steps

    def inbox(self, on_overflow: Callable[[], None]) -> Inbox:
        """A new inbox; `on_overflow` is called when its client stalls even after it was told to hurry."""
        inbox = Inbox(self._limits.stream_buffer_bytes, _now())
        self._inboxes[inbox] = on_overflow
        return inbox

    def forget(self, inbox: Inbox) -> None:
        """The request is over."""
        self.buffered_bytes -= inbox.pending_bytes
        inbox.pending_bytes = 0
        self._inboxes.pop(inbox, None)

    def taken(self, inbox: Inbox) -> None:
        """What its reader took has reached the client's socket."""
        self.buffered_bytes -= inbox.emptied()

    def register(
        self,
        wid: str,
        job: Callable[[int], wire.Job],
        *,
        size: int,
        choice: int,
        inbox: Inbox,
        headers: dict[str, str] | None = None,
    ) -> Attempt:
        """Register a stream on `wid`, which the caller has counted in the fleet. Its job goes out with `send`.

        `job` makes the job for a stream id; `size` is about its length in bytes, which its accept deadline allows for.
        """
        wep = self._fleet.workers[wid].ann.wep
        sid = self.end.open(_now(), wid, size)
        made = job(sid)
        attempt = Attempt(
            sid=sid,
            wid=wid,
            wep=wep,
            aid=made.aid,
            model=made.model,
            choice=choice,
            inbox=inbox,
            payload=wire.encode(made),
            headers=headers,
            answer=asyncio.get_running_loop().create_future(),
        )
        self._attempts[sid] = attempt
        self._pump.look()
        return attempt

    async def send(self, attempt: Attempt) -> None:
        """Publish the job. If the bus cannot take it now, the protocol's own repeat or deadline makes up for it."""
        try:
            await self._publish_job(attempt)
        except BusError as error:
            log.warning("job_not_sent", aid=attempt.aid, error=str(error))

    def end_all(self, error: HttpError) -> None:
        """Every open request gets `error` after what it already has."""
        for inbox in list(self._inboxes):
            inbox.fail(error)

    def cancel(self, attempt: Attempt, reason: str) -> None:
        """Stop it at the worker. Its usage still arrives and is reported to `ended`. Idempotent."""
        if attempt.terminal is None and not attempt.cancelling:
            attempt.cancelling = True
            self.end.cancel(_now(), attempt.sid, reason)
            self._obey()

    def worker_gone(self, wid: str, message: str) -> None:
        """The fleet gave a worker up."""
        self.end.worker_gone(_now(), wid, message)
        self._obey()

    def announced(self, wid: str, wep: str) -> None:
        """A worker announced itself."""
        self.end.announced(_now(), wid, wep)
        self._obey()

    def disconnected(self) -> None:
        """Our connection to the bus is down."""
        self.end.disconnected(_now())
        self._obey()

    def reconnected(self) -> None:
        """It is up again, and the socket was drained."""
        self.end.reconnected(_now())
        self._obey()

    # ---------------------------------------------------------------------------------------------------- from the bus

    def _on_frame(self, delivery: Delivery) -> None:
        frame = _FRAME.decode(delivery.data)
        try:
            self.end.frame(_now(), subjects.last(delivery.subject), frame, len(delivery.data))
        finally:  # what was good in a frame that is partly wrong has been used
            self._obey()

    def _on_answer(self, delivery: Delivery) -> None:
        """Replies to jobs (`j.<wid>.<sid>`), and what comes back from nobody (`j.` and `c.<wid>`)."""
        kind, wid, *rest = delivery.subject[len(self._bus.inbox) + 1 :].split(".")
        now = _now()
        if delivery.status == NO_RESPONDERS:
            self.end.no_responders(now, wid)
        elif kind == "j":
            reply = _reply(wid, delivery.data)
            if not rest or str(reply.sid) != rest[0]:
                raise ProtocolError(f"{wid} answered {rest} with sid {reply.sid}")
            self.end.replied(now, wid, reply.sid, reply)
        self._obey()

    # ------------------------------------------------------------------------------------------- the pump's machine

    def tick(self, now: float) -> None:
        """Do what is due."""
        self.end.tick(now)

    def next_wake(self) -> float | None:
        """When the next tick is due; at once if something waits to be sent."""
        return 0.0 if self._outbox else self.end.next_wake()

    def lagged(self, now: float) -> None:
        """The loop was late."""
        log.warning("loop_lagged")
        self.end.lagged(now)

    def instructions(self) -> list[SendCredit | SendCancel | ResendJob]:
        """What is to be published now."""
        self._sort_out()
        outgoing, self._outbox = self._outbox, []
        return outgoing

    def _obey(self) -> None:
        """After feeding the protocol: hand events over at once, leave what must be published to the pump."""
        self._sort_out()
        self._pump.look()

    def _sort_out(self) -> None:
        for instruction in self.end.instructions():
            if type(instruction) is Deliver:
                self._deliver(instruction.sid, instruction.events)
            elif isinstance(instruction, SendCredit | SendCancel | ResendJob):
                self._outbox.append(instruction)
            else:
                self._decided(instruction)

    async def _carry_out(self, instruction: SendCredit | SendCancel | ResendJob) -> None:
        match instruction:
            case SendCredit(wid=wid, credit=credit):
                await self._bus.publish(
                    subjects.credit(wid, self.gid), wire.encode(credit), reply=f"{self._bus.inbox}.c.{wid}"
                )
            case SendCancel(wid=wid, cancel=cancel):
                await self._bus.publish(
                    subjects.cancel(wid, self.gid), wire.encode(cancel), reply=f"{self._bus.inbox}.c.{wid}"
                )
            case ResendJob(sid=sid):
                attempt = self._attempts.get(sid)
                if attempt is not None:
                    await self._publish_job(attempt)

    async def _publish_job(self, attempt: Attempt) -> None:
        await self._bus.publish(
            subjects.job(attempt.wid, self.gid),
            attempt.payload,
            reply=subjects.answer(self._bus.inbox, attempt.wid, attempt.sid),
            headers=attempt.headers,
        )

    # ------------------------------------------------------------------------------------------------- to the requests

    def _decided(self, instruction: object) -> None:
        match instruction:
            case Accepted(sid=sid, accept=accept):
                attempt = self._attempts.get(sid)
                if attempt is not None:
                    attempt.accept = accept
                    self._answer(attempt, accept)
            case Refused(sid=sid, nack=nack):
                attempt = self._over(sid)
                if attempt is not None:
                    self._answer(attempt, nack)
            case Unanswered(sid=sid):
                attempt = self._over(sid)
                if attempt is not None:
                    self._answer(attempt, None)

    def _deliver(self, sid: int, events: tuple[wire.Event, ...]) -> None:
        attempt = self._attempts.get(sid)
        if attempt is None:
            return
        last = events[-1]
        if isinstance(last, wire.Fail) and last.code in _LOST:
            self._fleet.lost(attempt.wid, attempt.wep)
        if not attempt.answer.done():
            if isinstance(events[0], wire.Fail) and events[0].retryable:
                attempt.terminal = events[0]
                self._over(sid)
                self._answer(attempt, events[0])
                return
            # Any other event is as good as an accept.
            attempt.accept = wire.Accept(wep=attempt.wep, sid=sid, prompt_tokens=0)
            self._answer(attempt, attempt.accept)
        for event in events:
            if type(event) is wire.Text:
                attempt.received += len(event.ids)
        if not attempt.cancelling:
            self.buffered_bytes += attempt.inbox.put(attempt.choice, events)
        if isinstance(last, wire.End | wire.Fail):
            attempt.terminal = last
            self._over(sid)
            self.ended(attempt)
        if attempt.inbox.full or self.buffered_bytes > self._limits.all_buffers_bytes:
            self._relieve(attempt.inbox)

    def _answer(self, attempt: Attempt, answer: Answer) -> None:
        attempt.payload = b""
        if not attempt.answer.done():
            attempt.answer.set_result(answer)

    def _over(self, sid: int) -> Attempt | None:
        attempt = self._attempts.pop(sid, None)
        if attempt is not None:
            self._fleet.give(attempt.wid, attempt.wep)
            self.over(attempt)
            self.freed()
        return attempt

    # ---------------------------------------------------------------------------------------------------- slow clients

    def _relieve(self, full: Inbox) -> None:
        """A bound was passed: end the full inbox's request; for the global bound end those that stalled longest.

        What those have not taken is let go: ended requests that linger must not fill the room of others.
        """
        if full.full:
            self._too_slow(full)
        while self.buffered_bytes > self._limits.all_buffers_bytes:
            waiting = [inbox for inbox in self._inboxes if inbox.waiting_bytes]
            if not waiting:
                return
            stalled = min(waiting, key=lambda inbox: inbox.stuck_since)
            self._too_slow(stalled)
            self.buffered_bytes -= stalled.drop()

    def _too_slow(self, inbox: Inbox) -> None:
        if inbox.too_slow:
            return
        inbox.too_slow = True
        log.warning("client_too_slow", pending_bytes=inbox.pending_bytes)
        for attempt in [a for a in self._attempts.values() if a.inbox is inbox]:
            self.cancel(attempt, "client_too_slow")
        inbox.fail(UpstreamError("The client took the answer too slowly.", code="client_too_slow"))

    async def _sweep(self) -> None:
        """A socket without progress for `stalled_s` ends its request; after as long again the connection goes too.

        Requests that have heard nothing for a while are nudged, so that they can send a sign of life.
        """
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = _now()
            for inbox, overflow in list(self._inboxes.items()):
                inbox.look(now)
                stuck = now - inbox.stuck_since
                if stuck > 2 * self._limits.stalled_s:
                    overflow()
                elif stuck > self._limits.stalled_s:
                    self._too_slow(inbox)
                elif not inbox.pending_bytes and now - inbox.quiet_since > self._limits.comment_every_s:
                    inbox.quiet_since = now
                    inbox.nudge()


def _reply(wid: str, data: bytes) -> wire.Accept | wire.Nack:
    """A reply is one of our own tagged messages or a breach of the protocol: JetStream's JSON, say, is no answer."""
    try:
        reply: wire.Accept | wire.Nack = _REPLY.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{wid} answered with something else: {error}") from error
    return reply


_FRAME = wire.decoder(wire.Frame)
_REPLY = wire.decoder(wire.Reply)


def _now() -> float:
    return asyncio.get_running_loop().time()
