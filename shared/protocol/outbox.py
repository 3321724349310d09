"""What a worker holds for one gateway: the streams' logs, what of them was sent, and how much more may be."""

import enum
from collections import deque

from shared.protocol.liveness import Epoch, Strikes
from shared.protocol.timing import Timing
from shared.wire import Accept, Credit, Event, Fail, Frame, Job, Nack, Note, Text, TokenLogprob

_EVENT_BYTES = 40
_ID_BYTES = 9
_TERMINAL_BYTES = 256
_LOGPROB_BYTES = 40
_MAX_WINDOWS = 16


class Phase(enum.Enum):
    """Of a stream at the worker. What is forgotten leaves a tombstone."""

    DECIDING = "deciding"
    RUNNING = "running"
    ABORTING = "aborting"
    ENDED = "ended"


class Stream:
    """One job and the log of its events that are not acknowledged yet.

    The log holds the events `first` to `next` - 1, and those before `cursor` are on their way. `sends` says in which
    frame each of them went last: (fseq, one past the last seq in it). `fresh` is how far the cursor ever got.
    """

    __slots__ = (
        "acked",
        "aid",
        "alarm",
        "box",
        "cursor",
        "first",
        "fresh",
        "generated",
        "lacked_since",
        "log",
        "next",
        "phase",
        "reply",
        "sends",
        "sid",
        "spoke",
        "waiting",
    )

    def __init__(self, box: "Outbox", job: Job, reply_to: object) -> None:
        self.box = box
        self.alarm: float | None = None
        self.spoke = False
        self.sid = job.sid
        self.aid = job.aid
        self.phase = Phase.DECIDING
        self.reply: Accept | Nack | None = None
        self.waiting: list[object] = [reply_to]
        self.log: deque[Event] = deque()
        self.first = self.next = self.cursor = self.fresh = 0
        self.sends: deque[tuple[int, int]] = deque()
        self.lacked_since: float | None = None
        # The client already has what an earlier attempt produced: the orphan record must not fall behind it.
        self.generated = self.acked = len(job.resume.ids) if job.resume else 0

    def append(self, event: Event) -> None:
        """Log an event whose seq is `next`."""
        self.log.append(event)
        self.next += 1

    def sent_to(self, fseq: int, upto: int) -> None:
        """Every event before `upto` was sent, the last of them in frame `fseq`."""
        self.sends.append((fseq, upto))
        self.cursor = upto
        self.fresh = max(self.fresh, upto)

    def acknowledge(self, upto: int) -> None:
        """The gateway has every event before `upto`."""
        log = self.log
        while self.first < upto:
            event = log.popleft()
            self.first += 1
            if isinstance(event, Text):
                self.acked += len(event.ids)
        self.cursor = max(self.cursor, self.first)

    def acknowledge_frames(self, ack: int) -> None:
        """Every frame up to `ack` arrived, or what it held was repeated in a later one."""
        upto = self.first
        while self.sends and self.sends[0][0] <= ack:
            upto = self.sends.popleft()[1]
        self.acknowledge(upto)

    def rewind(self, wanted: int) -> int:
        """Go back to the event `wanted`; returns how many will be repeated.

        A late copy of an old request may want what was acknowledged since: then the oldest event left is the one.
        """
        self.acknowledge(wanted)
        repeated = self.cursor - self.first
        self.sends.clear()
        self.cursor = self.first
        return repeated


class Outbox:
    """One gateway, by its stable name.

    `ready` holds the streams with events to send, in the order they became so; `due` is when to flush, None while
    nothing can be sent.
    """

    __slots__ = (
        "_in_flight",
        "_limit",
        "_notes",
        "_weight",
        "_window_bytes",
        "ack",
        "alarm",
        "credit_at",
        "due",
        "epoch",
        "gid",
        "ready",
        "sent",
        "streams",
        "strikes",
        "tombs",
    )

    def __init__(self, gid: str, timing: Timing, now: float) -> None:
        self.gid = gid
        self.epoch: Epoch[int] = Epoch(timing.frozen)
        self.strikes = Strikes()
        self.alarm: float | None = None
        self.credit_at = now
        self.restart(timing)

    def restart(self, timing: Timing, sent: int = 0) -> None:
        """Another process of the gateway, to which `sent` frames went already: nothing of the one before counts."""
        self.streams: dict[int, Stream] = {}
        self.tombs: dict[int, tuple[float, Accept | Nack]] = {}
        self.due: float | None = None
        self.sent = self.ack = sent
        self._limit = sent + timing.window_frames
        self._window_bytes = timing.window_bytes
        self._in_flight: deque[tuple[int, int]] = deque()
        self._weight = 0
        self.ready: dict[int, Stream] = {}
        self._notes: dict[int, Note] = {}

    @property
    def pending(self) -> bool:
        """Something waits to be sent, allowed or not."""
        return bool(self.ready or self._notes)

    @property
    def working(self) -> bool:
        """Some stream's engine request may still run."""
        return any(stream.phase is not Phase.ENDED for stream in self.streams.values())

    def note(self, note: Note) -> None:
        """Answer a resume or a late cancel; a newer answer for the same stream replaces one that still waits."""
        self._notes[note.sid] = note

    def drop(self, stream: Stream) -> None:
        """Forget a stream and what it had to send."""
        self.streams.pop(stream.sid, None)
        self.ready.pop(stream.sid, None)
        self._notes.pop(stream.sid, None)

    def credit(self, credit: Credit, timing: Timing) -> None:
        """Take the window and the cumulative acknowledgement of a checked credit.

        A resume says that everything on its way counts as lost. It is repeated, which takes room that the
        acknowledgement cannot make, so the window starts again from the last frame sent.
        """
        window = min(credit.allow_fseq - credit.ack, _MAX_WINDOWS * timing.window_frames)
        self.ack = max(self.ack, credit.ack)
        self._window_bytes = credit.allow_bytes
        start = credit.ack
        if credit.resume:
            start = self.sent
            self._in_flight.clear()
            self._weight = 0
        self._limit = max(self._limit, start + window)
        while self._in_flight and self._in_flight[0][0] <= self.ack:
            self._weight -= self._in_flight.popleft()[1]

    def pack(self, wep: str, timing: Timing) -> list[Frame]:
        """Frames of everything pending, as far as the window allows."""
        frames: list[Frame] = []
        while (self.ready or self._notes) and self.sent < self._limit:
            events, weight = self._fill(timing)
            if not events:
                break
            self.sent += 1
            self._in_flight.append((self.sent, weight))
            self._weight += weight
            frames.append(Frame(wep=wep, gep=self.epoch.current or "", fseq=self.sent, events=tuple(events)))
        return frames

    def _fill(self, timing: Timing) -> tuple[list[Event], int]:
        """The events of the next frame and their weight. An event heavier than the whole window travels alone.

        Notes go first: what a resumed stream repeats must follow its note.
        """
        events: list[Event] = list(self._notes.values())
        self._notes.clear()
        weight = _EVENT_BYTES * len(events)
        room = timing.frame_bytes
        if self._in_flight:
            room = min(room, self._window_bytes - self._weight)
        fseq = self.sent + 1
        for stream in list(self.ready.values()):
            log, start = stream.log, stream.cursor - stream.first
            stop = len(log)
            index, full = start, False
            while index < stop:
                event = log[index]
                more = weigh(event)
                if weight + more > room and (events or self._in_flight):
                    full = True
                    break
                events.append(event)
                weight += more
                index += 1
            if index > start:
                stream.sent_to(fseq, stream.first + index)
            del self.ready[stream.sid]
            if full:
                self.ready[stream.sid] = stream  # behind the others
                break
        return events, weight


def weigh(event: Event) -> int:
    """Encoded size of an event in bytes, never less than the truth: flow control must not cost an encoding."""
    if type(event) is Text:
        size = len(event.text)
        weight = _EVENT_BYTES + (size if event.text.isascii() else 4 * size) + _ID_BYTES * len(event.ids)
        return weight + sum(map(_weigh_logprob, event.logprobs)) if event.logprobs else weight
    if isinstance(event, Fail):
        return _TERMINAL_BYTES + 4 * (len(event.code) + len(event.message))
    return _TERMINAL_BYTES


def _weigh_logprob(logprob: TokenLogprob) -> int:
    own = _LOGPROB_BYTES + 4 * len(logprob.token) + len(logprob.bytes)
    return own + sum(_LOGPROB_BYTES + 4 * len(top.token) + len(top.bytes) for top in logprob.top)
