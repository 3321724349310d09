"""The gateway's end. Read the package's theory of operation first."""

from shared.protocol.arrivals import Arrivals, Attempt, Peer, Phase
from shared.protocol.instructions import (
    Accepted,
    Deliver,
    GatewayCounters,
    GatewayInstruction,
    Refused,
    ResendJob,
    SendCancel,
    SendCredit,
    Unanswered,
)
from shared.protocol.liveness import Alarms
from shared.protocol.timing import Timing, require
from shared.wire import Accept, Cancel, Credit, End, Event, Fail, Frame, Nack, Note, Prefill, Text, Usage

_NEVER = float("-inf")
_MAX_STRAYS = 1024
_MAX_ENDED = 4096
# A correct worker sends at most one window beyond each credit that asks for a resume; this many were lost in a row
# long before the frozen timer.
_MAX_WINDOWS_LOST = 64


class GatewayEnd:
    """Every stream of one gateway process, over all its workers.

    Feed it what happens, with the time; take `instructions()` after each call; call `tick` at `next_wake()`. `now` is
    in seconds on any clock that never runs backwards. Inputs from a worker raise ProtocolError for impossible values;
    the state stays sound, what was good in the message has been used, and its instructions are there to be taken.
    """

    def __init__(self, gid: str, gep: str, timing: Timing = Timing(), first_sid: int = 1) -> None:  # noqa: B008
        self.gid = gid
        self.gep = gep
        self.timing = timing
        self.counters = GatewayCounters()
        self._first_sid = self._next_sid = first_sid
        self._streams: dict[int, Attempt] = {}
        self._peers: dict[str, Peer] = {}
        self._out: list[GatewayInstruction] = []
        self._alarms: Alarms[Attempt | Peer] = Alarms()
        self._down_since: float | None = None
        self._reconnected_at = _NEVER

    # ------------------------------ what the caller wants

    def open(self, now: float, wid: str, job_bytes: int, resumed: int = 0) -> int:
        """Register a new stream at `wid` and return its sid; publish the job afterwards, never before.

        `job_bytes` is the encoded size of the job, `resumed` the number of ids in its `resume`, which count as
        completion tokens of this attempt.
        """
        peer = self._peer(now, wid)
        if not peer.streams:
            peer.restart_timers(now)
            peer.credit_at = now
        sid = self._next_sid
        self._next_sid += 1
        stream = Attempt(sid, peer, self.timing.accept_deadline(job_bytes), resumed)
        self._streams[sid] = peer.streams[sid] = stream
        self.counters.opened += 1
        if self._down_since is None:
            self._alarms.set(stream, now + stream.accept_seconds)
            self._plan(peer)
        return sid

    def cancel(self, now: float, sid: int, reason: str) -> None:
        """Stop a stream. It leaves the open list at once; its terminal is still delivered. Idempotent."""
        stream = self._streams.get(sid)
        if stream is not None and stream.phase is not Phase.CANCELLING:
            self._start_cancel(now, stream, reason)

    def live(self, sid: int) -> bool:
        """Whether anything may still be delivered for `sid`."""
        stream = self._streams.get(sid)
        return stream is not None and not stream.mute

    def open_count(self, wid: str | None = None) -> int:
        """Streams in the open list (cancelled ones are not), of one worker or of all."""
        if wid is None:
            return sum(1 for peer in self._peers.values() for _ in peer.open_sids())
        return sum(1 for _ in self._peers[wid].open_sids()) if wid in self._peers else 0

    def instructions(self) -> list[GatewayInstruction]:
        """Take what is to be done, in order."""
        out, self._out = self._out, []
        return out

    # ------------------------------ what workers say

    def replied(self, now: float, wid: str, sid: int, reply: Accept | Nack) -> None:
        """The job's reply, of the first or the second sending. Raises ProtocolError if it names another stream."""
        require(reply.sid == sid, f"{wid} answered for stream {reply.sid} where {sid} was asked")
        peer = self._heard_peer(now, wid)
        if not self._same_process(now, peer, reply.wep, frozenset((sid,))):
            self.counters.frames_stale += 1
            return
        stream = peer.streams.get(sid)
        if isinstance(reply, Nack):
            if stream is not None:
                self._refuse(stream, reply)
            return
        require(min(reply.prompt_tokens, reply.cached_tokens) >= 0, f"{wid} counted a negative prompt")
        if stream is None:
            if sid not in peer.ended:
                self._stray(now, peer, sid)
        elif not stream.replied:
            self._accept(now, stream, reply)

    def frame(self, now: float, wid: str, frame: Frame, nbytes: int) -> None:
        """A frame of `nbytes` encoded bytes. This is the hot path: one Deliver per stream, nothing per event."""
        if frame.gep != self.gep:
            self.counters.frames_stale += 1
            return
        peer = self._heard_peer(now, wid)
        if frame.wep != peer.epoch.current and not self._same_process(
            now, peer, frame.wep, frozenset(event.sid for event in frame.events)
        ):
            self.counters.frames_stale += 1
            return
        self._check_fseq(peer, frame.fseq)
        peer.epoch.contested = None
        peer.frame_at = now
        counters = self.counters
        counters.frames += 1
        counters.bytes += nbytes
        if not peer.arrivals.take(frame.fseq):
            counters.frames_duplicate += 1
            return
        peer.frames_owed += 1
        peer.bytes_owed += nbytes
        counters.events += len(frame.events)
        self._events(now, peer, frame)

    def announced(self, now: float, wid: str, wep: str) -> None:
        """The worker announced itself; a new `wep` ends every stream of the old one."""
        self._same_process(now, self._heard_peer(now, wid), wep, frozenset())

    def heard(self, now: float, wid: str) -> None:
        """Any other message of the worker: it lives."""
        self._heard_peer(now, wid)

    def no_responders(self, now: float, wid: str) -> None:
        """Nobody listens where the worker should. Several in a row mean death, unless we have just reconnected."""
        peer = self._peers.get(wid)
        if peer is None or self._down_since is not None or now < self._reconnected_at + self.timing.reconnect_grace:
            return
        if peer.strikes.strike(now, self.timing):
            self.worker_gone(now, wid, "nobody listens at the worker's address")

    def worker_gone(self, now: float, wid: str, message: str) -> None:  # noqa: ARG002 - every input takes the time
        """The worker is known to be dead: end its streams."""
        peer = self._peers.get(wid)
        if peer is None:
            return
        peer.strikes.clear()
        self.counters.workers_lost += bool(peer.streams)
        for stream in list(peer.streams.values()):
            self._fail(stream, "worker_lost", message)

    # ------------------------------ our own connection and clock

    def disconnected(self, now: float) -> None:
        """Our connection is down: every timer about a worker stops."""
        if self._down_since is None:
            self._down_since = now
            self._alarms.clear()

    def reconnected(self, now: float) -> None:
        """Our connection is back and the socket drained: timers start from zero, and whatever was lost is asked for."""
        self._down_since = None
        self._reconnected_at = now
        self._restart_timers(now)
        for stream in self._streams.values():
            if stream.phase is Phase.CANCELLING:
                self._send_cancel(now, stream)
        for peer in self._peers.values():
            if peer.streams or peer.ended:
                self._ask_again(now, peer)
                self._plan(peer)

    def lagged(self, now: float) -> None:
        """The loop was late, and the socket has been drained since: timers start from zero."""
        if self._down_since is None:
            self._restart_timers(now)

    def tick(self, now: float) -> None:
        """Do whatever is due."""
        if self._down_since is not None:
            if self._streams and now >= self._down_since + self.timing.disconnect_end:
                self.counters.disconnect_ends += 1
                for stream in list(self._streams.values()):
                    self._fail(stream, "disconnected", "the gateway lost its connection to the bus")
            return
        for owner in self._alarms.due(now):
            if isinstance(owner, Peer):
                self._service(now, owner)
            elif owner.sid in self._streams:
                self._ring(now, owner)

    def next_wake(self) -> float | None:
        """When `tick` has something to do; None while nothing is pending."""
        if self._down_since is not None:
            return self._down_since + self.timing.disconnect_end if self._streams else None
        return self._alarms.next()

    # ------------------------------ one stream

    def _accept(self, now: float, stream: Attempt, accept: Accept) -> None:
        stream.replied = True
        stream.prompt, stream.cached = accept.prompt_tokens, accept.cached_tokens
        if stream.phase is Phase.OPENING:
            self._begin(now, stream)
        if stream.phase is Phase.RUNNING:
            self.counters.accepted += 1
            self._out.append(Accepted(stream.sid, accept))

    def _begin(self, now: float, stream: Attempt) -> None:
        """The worker has it: by its reply, or by a frame that overtook the reply."""
        peer = stream.peer
        if not any(other.named for other in peer.streams.values()):
            peer.frame_at = now  # silence counts from here
        stream.phase = Phase.RUNNING
        self._alarms.set(stream, None)
        if not peer.arrivals.whole:
            peer.resume_at = now  # a hole could not be repaired before this stream might be named
            self._plan(peer)

    def _refuse(self, stream: Attempt, nack: Nack) -> None:
        if stream.phase is Phase.OPENING:
            self._remove(stream)
            self.counters.refused += 1
            self._out.append(Refused(stream.sid, nack))
        elif stream.phase is Phase.CANCELLING and not stream.next and not stream.replied:
            self._conclude(stream, End(stream.sid, 0, "cancelled", Usage()))

    def _start_cancel(self, now: float, stream: Attempt, reason: str) -> None:
        stream.phase = Phase.CANCELLING
        stream.reason = reason
        stream.give_up = now + self.timing.cancel_give_up
        if self._down_since is None:
            self._send_cancel(now, stream)
            self._plan(stream.peer)

    def _send_cancel(self, now: float, stream: Attempt) -> None:
        self._cancel_at(stream.peer, stream.sid, stream.reason)
        self._alarms.set(stream, min(now + self.timing.cancel_resend, stream.give_up))

    def _cancel_at(self, peer: Peer, sid: int, reason: str) -> None:
        if self._down_since is not None:
            return
        self.counters.cancels += 1
        self._out.append(SendCancel(peer.wid, Cancel(gep=self.gep, sid=sid, reason=reason)))

    def _ring(self, now: float, stream: Attempt) -> None:
        """A stream's alarm: its job or its cancel went unanswered."""
        if stream.phase is Phase.CANCELLING:
            if now >= stream.give_up:
                self.counters.cancels_unanswered += 1
                self._fail(stream, "cancel_unanswered", "the worker did not confirm the cancellation", retryable=False)
            else:
                self._send_cancel(now, stream)
        elif not stream.resent:
            stream.resent = True
            self.counters.jobs_resent += 1
            self._out.append(ResendJob(stream.peer.wid, stream.sid))
            self._alarms.set(stream, now + stream.accept_seconds)
        else:
            self.counters.unanswered += 1
            self._out.append(Unanswered(stream.sid))
            stream.mute = True
            self._start_cancel(now, stream, "unanswered")

    def _fail(self, stream: Attempt, code: str, message: str, *, retryable: bool = True) -> None:
        """End an attempt for its worker, which cannot."""
        self._conclude(stream, Fail(stream.sid, stream.next, code, message, retryable, stream.usage()))

    def _conclude(self, stream: Attempt, terminal: End | Fail) -> None:
        self._remove(stream)
        if not stream.mute:
            self._out.append(Deliver(stream.sid, (terminal,)))

    def _remove(self, stream: Attempt) -> None:
        del self._streams[stream.sid], stream.peer.streams[stream.sid]
        self._alarms.set(stream, None)

    # ------------------------------ the events of one frame

    def _events(self, now: float, peer: Peer, frame: Frame) -> None:
        streams = peer.streams
        repair = not peer.arrivals.whole
        runs: dict[int, list[Event]] = {}
        odd: list[Event] = []
        ended = False
        for event in frame.events:
            sid = event.sid
            stream = streams.get(sid)
            kind = type(event)
            if stream is None or event.seq != stream.next or kind is Note:
                odd.append(event)
                continue
            if stream.phase is Phase.OPENING:
                self._begin(now, stream)
            stream.next += 1
            if type(event) is Text:
                stream.completion += len(event.ids)
            elif type(event) is Prefill:
                stream.prompt, stream.cached = event.total, event.cached
            else:
                ended = True
                self._remove(stream)
                self._acknowledge_end(peer, sid)
            if not stream.mute:
                if sid in runs:
                    runs[sid].append(event)
                else:
                    runs[sid] = [event]
        self._out.extend([Deliver(sid, tuple(run)) for sid, run in runs.items()])
        if runs:
            peer.tries = 0
        # Only now: a terminal that an odd event brings about must come after what the frame delivers.
        bad = [what for event in odd if (what := self._odd(now, peer, event, frame.fseq))]
        if repair or odd:
            self._repair(now, peer)
        self._after_frame(now, peer, ended=ended)
        require(not bad, "; ".join(bad[:3]))

    def _odd(self, now: float, peer: Peer, event: Event, fseq: int) -> str:
        """A note, a duplicate, an event that came too early or of an unknown stream. Says what is wrong, if it is."""
        sid = event.sid
        if not self._first_sid <= sid < self._next_sid:
            return f"{peer.wid} sent an event of stream {sid}, which never existed"
        if (event.seq == -1) is not isinstance(event, Note) or event.seq < -1:
            return f"{peer.wid} sent stream {sid} an event with the impossible seq {event.seq}"
        stream = peer.streams.get(sid)
        if isinstance(event, Note):
            if stream is not None:
                self._note(stream, event, fseq)
        elif stream is None:
            self._unknown(now, peer, event)
        elif event.seq < stream.next:
            self.counters.duplicates_dropped += 1
        else:
            if stream.phase is Phase.OPENING:
                self._begin(now, stream)
            self.counters.early_dropped += 1
            if peer.arrivals.whole:
                # Nothing is missing that could still fill the gap: this worker lost track of the stream.
                self._stray(now, peer, sid)
                self._fail(stream, "stream_gone", f"the worker skipped from event {stream.next} to {event.seq}")
        return ""

    def _note(self, stream: Attempt, note: Note, fseq: int) -> None:
        if note.what == "resumed":
            self.counters.replays += 1
            stream.cover = max(stream.cover, fseq)
        elif stream.phase is Phase.RUNNING:
            self.counters.gone += 1
            self._fail(stream, "stream_gone", "the worker does not know this stream any more")
        elif stream.phase is Phase.CANCELLING:  # which is what was asked for
            self._conclude(stream, End(stream.sid, stream.next, "cancelled", stream.usage()))

    def _unknown(self, now: float, peer: Peer, event: Event) -> None:
        if event.sid in peer.ended:
            self.counters.duplicates_dropped += 1
        elif isinstance(event, End | Fail):
            self._acknowledge_end(peer, event.sid)  # it is over there too: no cancel needed, only the buffer must go
            self._credit_soon(now, peer)
        else:
            self._stray(now, peer, event.sid)

    def _stray(self, now: float, peer: Peer, sid: int) -> None:
        """The worker runs a stream that is not registered there: cancel it, but not with every event."""
        self.counters.strays += 1
        if now < peer.strays.get(sid, _NEVER) + self.timing.cancel_resend:
            return
        if len(peer.strays) >= _MAX_STRAYS:
            horizon = now - self.timing.cancel_resend
            peer.strays = {sid: at for sid, at in peer.strays.items() if at > horizon}
            if len(peer.strays) >= _MAX_STRAYS:
                return
        peer.strays[sid] = now
        self._cancel_at(peer, sid, "unknown")

    def _acknowledge_end(self, peer: Peer, sid: int) -> None:
        if self.timing.terminal_ack and len(peer.ended) < _MAX_ENDED:
            peer.ended[sid] = self.timing.ended_repeats

    def _after_frame(self, now: float, peer: Peer, *, ended: bool) -> None:
        timing = self.timing
        if peer.frames_owed >= timing.credit_frames or peer.bytes_owed * 4 >= timing.window_bytes:
            self._send_credit(now, peer, {})
        elif ended:
            self._credit_soon(now, peer)

    # ------------------------------ one worker

    def _peer(self, now: float, wid: str) -> Peer:
        peer = self._peers.get(wid)
        if peer is None:
            peer = self._peers[wid] = Peer(wid, self.timing.frozen, now)
        return peer

    def _heard_peer(self, now: float, wid: str) -> Peer:
        peer = self._peer(now, wid)
        peer.heard_at = now
        peer.strikes.clear()
        return peer

    def _same_process(self, now: float, peer: Peer, wep: str, named: frozenset[int]) -> bool:
        """Whether a message of epoch `wep` counts; a new one first ends the streams of the one before.

        A job that was not answered yet and that the message names has reached the new process, and stays.
        """
        verdict = peer.epoch.judge(now, wep)
        if verdict in ("same", "old"):
            return verdict == "same"
        if verdict == "new":
            self.counters.workers_restarted += 1
            for stream in list(peer.streams.values()):
                if stream.phase is Phase.OPENING:
                    if stream.sid in named:
                        continue
                    self._cancel_at(peer, stream.sid, "worker_restarted")  # its job may have reached the new process
                self._fail(stream, "worker_restarted", "the worker was restarted")
        peer.forget_frames(peer.epoch.adopt(wep, peer.arrivals) or Arrivals())
        self._plan(peer)
        return True

    def _check_fseq(self, peer: Peer, fseq: int) -> None:
        reach = _MAX_WINDOWS_LOST * self.timing.window_frames
        arrivals = peer.arrivals
        require(0 < fseq <= arrivals.high + reach, f"{peer.wid} sent frame {fseq} after frame {arrivals.high}")
        require(arrivals.scattered < reach, f"{peer.wid} sends on and on without repairing its losses")

    def _service(self, now: float, peer: Peer) -> None:
        """A worker's alarm: lease, loss, silence, or death."""
        timing = self.timing
        if peer.streams and now >= peer.heard_at + timing.frozen:
            self.counters.workers_frozen += 1
            for stream in list(peer.streams.values()):
                # Its job may still lie in the frozen process's socket.
                self._cancel_at(peer, stream.sid, "worker_frozen")
                self._fail(stream, "worker_frozen", f"nothing was heard of the worker for {timing.frozen} s")
        self._repair(now, peer)
        if (peer.streams or peer.ended) and now >= peer.credit_due(timing):
            self._send_credit(now, peer, {})
        self._plan(peer)

    def _repair(self, now: float, peer: Peer) -> None:
        """Give up holes whose content was repeated; ask again for what is missing, or after silence."""
        arrivals = peer.arrivals
        if not arrivals.whole:
            if not self.timing.replay:
                arrivals.skip_to(arrivals.high)
            elif arrivals.skip_to(peer.cover()):
                peer.resume_at = now  # the last request was answered: whatever is missing now is a younger loss
        if self._down_since is not None:
            return
        if arrivals.whole:
            if self.timing.tail_timer and peer.streams and now >= peer.silent_at(self.timing):
                self._ask_again(now, peer)
        elif now >= peer.resume_at:
            self.counters.holes += 1
            self._ask_again(now, peer)
            self._plan(peer)

    def _ask_again(self, now: float, peer: Peer) -> None:
        """Send a resume, unless no stream may be named yet; either way the next one waits."""
        peer.resume_at = now + self.timing.backoff(peer.tries)
        wanted = peer.wanted() if self.timing.replay else {}
        if wanted:
            peer.tries += 1
            self.counters.resumes += 1
            self._send_credit(now, peer, wanted)

    def _credit_soon(self, now: float, peer: Peer) -> None:
        """At once, unless the last credit is so recent that this one should wait for more to say."""
        due = peer.credit_at + self.timing.credit_gap
        if now >= due:
            self._send_credit(now, peer, {})
        elif peer.acknowledge_at is None:
            peer.acknowledge_at = due
            self._plan(peer)

    def _send_credit(self, now: float, peer: Peer, resume: dict[int, int]) -> None:
        """Flow control, acknowledgement and lease in one. Without a known epoch there is nobody to address."""
        peer.credit_at = now
        if self._down_since is not None or peer.epoch.current is None:
            return
        timing, ack = self.timing, peer.arrivals.ack
        peer.frames_owed = peer.bytes_owed = 0
        peer.acknowledge_at = None
        self.counters.credits += 1
        credit = Credit(
            gep=self.gep,
            wep=peer.epoch.current,
            ack=ack,
            allow_fseq=ack + timing.window_frames,
            allow_bytes=timing.window_bytes,
            open=tuple(peer.open_sids()),
            ended=peer.take_ended(),
            resume=resume,
        )
        self._out.append(SendCredit(peer.wid, credit))

    def _plan(self, peer: Peer) -> None:
        if self._down_since is None:
            self._alarms.set(peer, peer.service_at(self.timing))

    def _restart_timers(self, now: float) -> None:
        for stream in self._streams.values():
            if stream.phase is Phase.CANCELLING:
                stream.give_up = now + self.timing.cancel_give_up
                self._alarms.set(stream, now + self.timing.cancel_resend)
            elif stream.phase is Phase.OPENING:
                self._alarms.set(stream, now + stream.accept_seconds)
        for peer in self._peers.values():
            peer.restart_timers(now)
            self._plan(peer)
