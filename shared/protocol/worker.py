"""The worker's end. Read the package's theory of operation first."""

from shared.protocol.instructions import Abort, Answer, Orphaned, SendFrame, Start, WorkerCounters, WorkerInstruction
from shared.protocol.liveness import Alarms
from shared.protocol.outbox import Outbox, Phase, Stream
from shared.protocol.timing import Timing, require
from shared.wire import (
    PROTO,
    Accept,
    Cancel,
    Credit,
    End,
    Fail,
    FinishReason,
    Job,
    Nack,
    NackCode,
    Note,
    Prefill,
    Text,
    Timings,
    TokenLogprob,
    Usage,
)

_NEVER = float("-inf")
_MAX_HANDLES = 8


class WorkerEnd:
    """Every stream of one worker process, over all its gateways.

    Feed it what happens, with the time; take `instructions()` after each call; call `flush` at `flush_at()` and `tick`
    at `next_wake()`. `now` is in seconds on any clock that never runs backwards. Inputs from a gateway raise
    ProtocolError for impossible values, and then change nothing.
    """

    def __init__(self, wid: str, wep: str, timing: Timing = Timing()) -> None:  # noqa: B008
        self.wid = wid
        self.wep = wep
        self.timing = timing
        self.counters = WorkerCounters()
        self._boxes: dict[str, Outbox] = {}
        self._out: list[WorkerInstruction] = []
        self._alarms: Alarms[Stream | Outbox] = Alarms()
        self._orphans: list[Orphaned] = []
        self._down_since: float | None = None
        self._reconnected_at = _NEVER

    # ------------------------------ what gateways say

    def job(self, now: float, gid: str, job: Job, reply_to: object) -> None:
        """A job, answered through `reply_to` (any handle of the shell's). The same sid again runs nothing twice."""
        if job.proto != PROTO:
            self._nack(job.sid, reply_to, "bad_proto", f"this worker speaks version {PROTO}, not {job.proto}")
            return
        require(job.sid >= 0, f"{gid} sent a job with the sid {job.sid}")
        box = self._box(now, gid, job.gep)
        if box is None:
            self._nack(job.sid, reply_to, "cancelled", "the gateway was restarted since")
            return
        stream = box.streams.get(job.sid)
        if stream is not None:
            require(stream.aid == job.aid, f"{gid} used sid {job.sid} for two attempts")
            require(len(stream.waiting) < _MAX_HANDLES, f"{gid} repeats job {job.sid} on and on")
            self.counters.jobs_repeated += 1
            if stream.reply is None:
                stream.waiting.append(reply_to)
            else:
                self._out.append(Answer(reply_to, stream.reply))
        elif now < (tomb := box.tombs.get(job.sid, (_NEVER, None)))[0] and tomb[1] is not None:
            self.counters.tombstone_refusals += 1
            self._out.append(Answer(reply_to, tomb[1]))
        else:
            self._start(now, box, job, reply_to)

    def credit(self, now: float, gid: str, credit: Credit) -> None:
        """Flow control, acknowledgement and lease. One for an earlier process of this worker is ignored."""
        box = self._box(now, gid, credit.gep) if credit.wep == self.wep else None
        if box is None:
            self.counters.credits_stale += 1
            return
        _check(box, credit)
        self.counters.credits += 1
        box.credit_at = now
        box.credit(credit, self.timing)
        for stream in list(box.streams.values()):
            stream.acknowledge_frames(box.ack)
            if stream.phase is Phase.ENDED and not stream.log:
                self._forget(now, stream)
        for sid in credit.ended:
            if sid in box.streams:
                self._forget(now, box.streams[sid])
        for sid, wanted in credit.resume.items():
            self._resume(box, sid, wanted)
        if self.timing.lease_on:
            self._renew(now, box, frozenset(credit.open))
        if box.pending:
            box.due = now

    def cancel(self, now: float, gid: str, cancel: Cancel) -> None:
        """Stop a stream, or refuse the job that this message overtook. What has ended stays until acknowledged."""
        require(cancel.sid >= 0, f"{gid} cancelled the sid {cancel.sid}")
        box = self._box(now, gid, cancel.gep)
        if box is None:
            return
        self.counters.cancels += 1
        stream = box.streams.get(cancel.sid)
        if stream is None:
            if cancel.sid not in box.tombs:
                self._bury(now, box, cancel.sid, None)
            box.note(Note(cancel.sid, -1, "gone"))
            box.due = now
        elif stream.phase is Phase.DECIDING:
            self._out.append(Abort(gid, cancel.sid, cancel.reason, final=True))
            self._forget(now, stream)
        elif stream.phase is Phase.RUNNING:
            stream.phase = Phase.ABORTING
            self._alarms.set(stream, now + self.timing.cancel_give_up)
            self._out.append(Abort(gid, cancel.sid, cancel.reason, final=False))

    def announced(self, now: float, gid: str, gep: str) -> None:
        """The gateway's heartbeat; a new `gep` aborts every stream of the old one. Only known gateways matter."""
        if gid in self._boxes:
            self._box(now, gid, gep)

    def no_responders(self, now: float, gid: str) -> None:
        """Nobody listens where the gateway should. Several in a row mean death, unless we have just reconnected."""
        box = self._boxes.get(gid)
        if box is None or self._down_since is not None or now < self._reconnected_at + self.timing.reconnect_grace:
            return
        if box.strikes.strike(now, self.timing):
            box.strikes.clear()
            self.counters.gateways_lost += bool(box.streams)
            self._give_all_up(now, box, "gateway_lost")

    # ------------------------------ what the engine says

    def answer(self, now: float, gid: str, sid: int, reply: Accept | Nack) -> None:
        """The worker decided. Every request for this sid gets this reply, now and later."""
        stream = self._stream(gid, sid)
        if stream is None or stream.reply is not None:
            return
        stream.reply = reply
        waiting, stream.waiting = stream.waiting, []
        self._out.extend([Answer(handle, reply) for handle in waiting])
        if isinstance(reply, Nack):
            self.counters.jobs_refused += 1
            self._forget(now, stream)
        elif stream.phase is Phase.DECIDING:
            stream.phase = Phase.RUNNING

    def text(  # noqa: PLR0917 - the order of the wire event
        self,
        now: float,
        gid: str,
        sid: int,
        text: str,
        ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] | None = None,
    ) -> None:
        """A piece of answer of a running stream; ignored once the stream is over, like all of these."""
        # The hot path: everything that it needs is written out here.
        box = self._boxes.get(gid)
        stream = box.streams.get(sid) if box is not None else None
        if box is None or stream is None or stream.phase is Phase.ENDED:
            return
        stream.log.append(Text(sid, stream.next, text, ids, logprobs))
        stream.next += 1
        stream.generated += len(ids)
        box.ready[sid] = stream
        due = now + self.timing.linger if stream.spoke else now
        if box.due is None or due < box.due:
            box.due = due
        stream.spoke = True

    def prefill(self, now: float, gid: str, sid: int, done: int, total: int, cached: int) -> None:  # noqa: PLR0917
        """Progress, in prompt tokens. Of several that wait to be sent, the last is enough."""
        stream = self._stream(gid, sid)
        if stream is None or stream.phase is Phase.ENDED:
            return
        if stream.next > stream.fresh and stream.log and isinstance(stream.log[-1], Prefill):
            stream.log[-1] = Prefill(sid, stream.next - 1, done, total, cached)
            return
        stream.append(Prefill(sid, stream.next, done, total, cached))
        self._queue(now, stream, urgent=stream.next == 1)

    def end(  # noqa: PLR0917
        self,
        now: float,
        gid: str,
        sid: int,
        reason: FinishReason,
        usage: Usage,
        timings: Timings = Timings(),  # noqa: B008
    ) -> None:
        """The request ended well, or was stopped as asked (`cancelled`)."""
        stream = self._stream(gid, sid)
        if stream is not None:
            self._finish(now, stream, End(sid, stream.next, reason, usage, timings))

    def fail(  # noqa: PLR0917
        self,
        now: float,
        gid: str,
        sid: int,
        code: str,
        message: str,
        retryable: bool,
        usage: Usage = Usage(),  # noqa: B008
    ) -> None:
        """The request failed."""
        stream = self._stream(gid, sid)
        if stream is not None:
            self._finish(now, stream, Fail(sid, stream.next, code, message, retryable, usage))

    # ------------------------------ our own connection and clock

    def disconnected(self, now: float) -> None:
        """Our connection is down: nothing is sent, and every timer about a gateway stops."""
        if self._down_since is None:
            self._down_since = now
            self._alarms.clear()

    def reconnected(self, now: float) -> None:
        """Our connection is back and the socket drained: timers start from zero."""
        self._down_since = None
        self._reconnected_at = now
        self._restart_timers(now)
        self._out.extend(self._orphans)
        self._orphans.clear()
        for box in self._boxes.values():
            box.due = now if box.pending else None

    def lagged(self, now: float) -> None:
        """The loop was late, and the socket has been drained since: timers start from zero."""
        if self._down_since is None:
            self._restart_timers(now)

    def tick(self, now: float) -> None:
        """Do whatever is due, except flushing."""
        if self._down_since is not None:
            if self._held() and now >= self._down_since + self.timing.disconnect_end:
                self.counters.disconnect_ends += 1
                for box in self._boxes.values():
                    self._give_all_up(now, box, "disconnected")
            return
        for owner in self._alarms.due(now):
            if isinstance(owner, Outbox):
                self._service(now, owner)
            elif owner.box.streams.get(owner.sid) is owner:
                self.counters.terminals_expired += owner.phase is Phase.ENDED
                self._give_up(now, owner, "cancel_unfinished")

    def next_wake(self) -> float | None:
        """When `tick` has something to do; None while nothing is pending."""
        if self._down_since is not None:
            return self._down_since + self.timing.disconnect_end if self._held() else None
        return self._alarms.next()

    def flush(self, now: float) -> None:
        """Pack what is due into frames, and with it all that is pending for the same gateway."""
        for box in self._boxes.values():
            if box.due is None or now < box.due:
                continue
            box.due = None
            if self._down_since is not None or now >= box.credit_at + self.timing.stop_emitting:
                self.counters.stalls += 1
                continue
            for frame in box.pack(self.wep, self.timing):
                self.counters.frames += 1
                self.counters.events += len(frame.events)
                self._out.append(SendFrame(box.gid, frame))
            self.counters.stalls += box.pending
            if not (self.timing.replay and self.timing.terminal_ack):
                self._forget_sent(now, box)

    def flush_at(self) -> float | None:
        """When `flush` must be called; None while nothing waits or nothing may be sent."""
        if self._down_since is not None:
            return None
        return min((box.due for box in self._boxes.values() if box.due is not None), default=None)

    def open_count(self) -> int:
        """Streams whose request may still run."""
        return sum(stream.phase is not Phase.ENDED for box in self._boxes.values() for stream in box.streams.values())

    def unacked_count(self) -> int:
        """Finished streams whose terminal was not acknowledged yet."""
        return self._held() - self.open_count()

    def instructions(self) -> list[WorkerInstruction]:
        """Take what is to be done, in order."""
        out, self._out = self._out, []
        return out

    # ------------------------------ one stream

    def _stream(self, gid: str, sid: int) -> Stream | None:
        box = self._boxes.get(gid)
        return None if box is None else box.streams.get(sid)

    def _start(self, now: float, box: Outbox, job: Job, reply_to: object) -> None:
        if not box.working:
            box.credit_at = max(box.credit_at, now)  # no credit was due while nothing ran
            if self._down_since is None:
                self._alarms.set(box, now + self.timing.abort_uncredited)
        box.streams[job.sid] = Stream(box, job, reply_to)
        self.counters.jobs += 1
        self._out.append(Start(box.gid, job.sid, job))

    def _queue(self, now: float, stream: Stream, *, urgent: bool) -> None:
        box = stream.box
        box.ready[stream.sid] = stream
        due = now if urgent else now + self.timing.linger
        if box.due is None or due < box.due:
            box.due = due

    def _finish(self, now: float, stream: Stream, terminal: End | Fail) -> None:
        if stream.phase is Phase.ENDED:
            return
        stream.phase = Phase.ENDED
        stream.append(terminal)
        self._queue(now, stream, urgent=True)
        if self._down_since is None:
            self._alarms.set(stream, now + self.timing.terminal_buffer)

    def _resume(self, box: Outbox, sid: int, wanted: int) -> None:
        stream = box.streams.get(sid)
        if stream is None:
            self.counters.gone += 1
            box.note(Note(sid, -1, "gone"))
            return
        self.counters.replays += stream.rewind(wanted)
        box.note(Note(sid, -1, "resumed"))
        if stream.log:
            box.ready[sid] = stream

    def _renew(self, now: float, box: Outbox, listed: frozenset[int]) -> None:
        """The lease: a stream that the list has lacked for too long is nobody's. A cancelled one is not listed."""
        for sid, stream in list(box.streams.items()):
            if stream.phase in (Phase.ENDED, Phase.ABORTING) or sid in listed:
                stream.lacked_since = None
            elif stream.lacked_since is None:
                stream.lacked_since = now
            elif now >= stream.lacked_since + self.timing.lease:
                self.counters.lease_aborts += 1
                self._give_up(now, stream, "lease")

    def _give_up(self, now: float, stream: Stream, reason: str) -> None:
        """Forget a stream whose gateway did not confirm the end of it."""
        box = stream.box
        if stream.phase is not Phase.ENDED:
            self._out.append(Abort(box.gid, stream.sid, reason, final=True))
        if stream.phase is not Phase.DECIDING:
            self.counters.orphans += 1
            orphan = Orphaned(box.gid, stream.aid, stream.sid, stream.generated, stream.acked)
            (self._out if self._down_since is None else self._orphans).append(orphan)
        self._forget(now, stream)

    def _forget(self, now: float, stream: Stream) -> None:
        stream.box.drop(stream)
        self._alarms.set(stream, None)
        self._bury(now, stream.box, stream.sid, stream.reply)
        for handle in stream.waiting:
            self._nack(stream.sid, handle, "cancelled", "cancelled before it was answered")

    def _bury(self, now: float, box: Outbox, sid: int, reply: Accept | Nack | None) -> None:
        """Remember what to answer should the job of this sid come, or come again."""
        if not self.timing.tombstone_on:
            return
        tombs = box.tombs
        while tombs:
            oldest = next(iter(tombs))
            if tombs[oldest][0] > now and len(tombs) < self.timing.tombstones:
                break
            del tombs[oldest]
        nack = Nack(wep=self.wep, sid=sid, code="cancelled", message="cancelled before the job came")
        tombs.pop(sid, None)
        tombs[sid] = (now + self.timing.tombstone, reply or nack)

    def _nack(self, sid: int, reply_to: object, code: NackCode, message: str) -> None:
        self.counters.jobs_refused += 1
        self._out.append(Answer(reply_to, Nack(wep=self.wep, sid=sid, code=code, message=message)))

    # ------------------------------ one gateway

    def _box(self, now: float, gid: str, gep: str) -> Outbox | None:
        """Everything of gateway `gid`; None if the message is of a process that was replaced since."""
        box = self._boxes.get(gid)
        if box is None:
            box = self._boxes[gid] = Outbox(gid, self.timing, now)
        box.strikes.clear()
        verdict = box.epoch.judge(now, gep)
        if verdict == "old":
            return None
        if verdict != "same":
            if verdict == "new":
                self.counters.gateways_restarted += 1
                self._give_all_up(now, box, "gateway_restarted")
            box.restart(self.timing, box.epoch.adopt(gep, box.sent) or 0)
            box.credit_at = now
        return box

    def _service(self, now: float, box: Outbox) -> None:
        """A gateway's alarm: has it gone without giving credit for too long?"""
        due = box.credit_at + self.timing.abort_uncredited
        if now >= due:
            for stream in list(box.streams.values()):
                if stream.phase is not Phase.ENDED:
                    self.counters.credit_aborts += 1
                    self._give_up(now, stream, "no_credit")
        elif box.working:
            self._alarms.set(box, due)

    def _give_all_up(self, now: float, box: Outbox, reason: str) -> None:
        for stream in list(box.streams.values()):
            self._give_up(now, stream, reason)

    def _forget_sent(self, now: float, box: Outbox) -> None:
        """Only with a safety device off: what was sent is taken for received."""
        for stream in list(box.streams.values()):
            if not self.timing.replay:
                stream.acknowledge(stream.cursor)
            if not self.timing.terminal_ack and stream.phase is Phase.ENDED and stream.cursor == stream.next:
                self._forget(now, stream)

    def _held(self) -> int:
        return sum(len(box.streams) for box in self._boxes.values())

    def _restart_timers(self, now: float) -> None:
        for box in self._boxes.values():
            box.credit_at = now
            box.strikes.clear()
            self._alarms.set(box, now + self.timing.abort_uncredited if box.working else None)
            for stream in box.streams.values():
                stream.lacked_since = None
                if stream.phase is Phase.ENDED:
                    self._alarms.set(stream, now + self.timing.terminal_buffer)
                elif stream.phase is Phase.ABORTING:
                    self._alarms.set(stream, now + self.timing.cancel_give_up)


def _check(box: Outbox, credit: Credit) -> None:
    """Refuse a credit that no correct gateway sends, before anything of it is used."""
    gid = box.gid
    require(0 <= credit.ack <= box.sent, f"{gid} acknowledged frame {credit.ack} of {box.sent}")
    require(credit.allow_fseq >= credit.ack and credit.allow_bytes >= 0, f"{gid} allows less than nothing")
    for sid in credit.ended:
        stream = box.streams.get(sid)
        require(stream is None or stream.phase is Phase.ENDED, f"{gid} acknowledged the end of running stream {sid}")
    for sid, wanted in credit.resume.items():
        stream = box.streams.get(sid)
        require(wanted >= 0, f"{gid} wants event {wanted} of stream {sid}")
        require(stream is None or wanted <= stream.fresh, f"{gid} wants event {wanted} of stream {sid}, never sent")
