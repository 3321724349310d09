"""What a gateway knows of one worker: which frames came, what was lost, and which streams are registered there."""

import enum
from collections.abc import Iterator

from shared.protocol.liveness import Epoch, Strikes
from shared.protocol.timing import Timing
from shared.wire import Usage


class Phase(enum.Enum):
    """Of an attempt, as the gateway sees it. There is no phase for the end: what is over is not registered."""

    OPENING = "opening"
    RUNNING = "running"
    CANCELLING = "cancelling"


class Attempt:
    """One registered sid.

    `next` is the seq wanted next. Losses in frames up to `cover` are known not to concern this stream any more: either
    they are older than it, or the worker has since repeated everything that they could have held. `mute`: the attempt
    is over for the caller, only its cancel is still under way.
    """

    __slots__ = (
        "accept_seconds",
        "alarm",
        "cached",
        "completion",
        "cover",
        "give_up",
        "mute",
        "next",
        "peer",
        "phase",
        "prompt",
        "reason",
        "replied",
        "resent",
        "sid",
    )

    def __init__(self, sid: int, peer: "Peer", accept_seconds: float, resumed: int) -> None:
        self.sid = sid
        self.peer = peer
        self.phase = Phase.OPENING
        self.next = 0
        self.cover = peer.arrivals.high
        self.accept_seconds = accept_seconds
        self.resent = False
        self.replied = False
        self.mute = False
        self.reason = ""
        self.give_up = 0.0
        self.prompt = 0
        self.cached = 0
        self.completion = resumed
        self.alarm: float | None = None

    @property
    def named(self) -> bool:
        """Whether a resume may name it: an unaccepted job may not have reached the worker yet, who would say `gone`."""
        return self.phase is not Phase.OPENING

    def usage(self) -> Usage:
        """What was received, for when the worker cannot say."""
        return Usage(prompt=self.prompt, cached=self.cached, completion=self.completion)


class Arrivals:
    """Which frames of one (worker epoch, gateway epoch) arrived: all up to `ack`, and some up to `high`."""

    __slots__ = ("_ahead", "ack", "high")

    def __init__(self) -> None:
        self.ack = 0
        self.high = 0
        self._ahead: set[int] = set()

    @property
    def whole(self) -> bool:
        """No hole: everything up to the highest came."""
        return self.ack == self.high

    @property
    def scattered(self) -> int:
        """How many frames wait beyond the first hole."""
        return len(self._ahead)

    def take(self, fseq: int) -> bool:
        """Note an arrival; False if this frame came before, or was given up and its content repeated since."""
        if fseq == self.high + 1 and self.ack == self.high:
            self.ack = self.high = fseq
            return True
        if fseq <= self.ack or fseq in self._ahead:
            return False
        self._ahead.add(fseq)
        self.high = max(self.high, fseq)
        self._close_up()
        return True

    def skip_to(self, cover: int) -> bool:
        """Give the holes up to `cover` up; True if there were any."""
        cover = min(cover, self.high)
        if cover <= self.ack:
            return False
        self.ack = cover
        self._ahead = {fseq for fseq in self._ahead if fseq > cover}
        self._close_up()
        return True

    def top_hole(self) -> int:
        """The highest missing frame (0 if none)."""
        if self.whole:
            return 0
        fseq = self.high
        while fseq in self._ahead:
            fseq -= 1
        return fseq

    def _close_up(self) -> None:
        while self.ack + 1 in self._ahead:
            self.ack += 1
            self._ahead.remove(self.ack)


class Peer:
    """One worker, by its stable name. Times are the last time of each thing; `resume_at` the earliest next resume."""

    __slots__ = (
        "acknowledge_at",
        "alarm",
        "arrivals",
        "bytes_owed",
        "credit_at",
        "ended",
        "epoch",
        "frame_at",
        "frames_owed",
        "heard_at",
        "resume_at",
        "strays",
        "streams",
        "strikes",
        "tries",
        "wid",
    )

    def __init__(self, wid: str, patience: float, now: float) -> None:
        self.wid = wid
        self.epoch: Epoch[Arrivals] = Epoch(patience)
        self.streams: dict[int, Attempt] = {}
        self.strikes = Strikes()
        self.strays: dict[int, float] = {}
        self.alarm: float | None = None
        self.credit_at = now
        self.acknowledge_at: float | None = None
        self.restart_timers(now)
        self.forget_frames(Arrivals())

    def forget_frames(self, arrivals: Arrivals) -> None:
        """A new process counts its frames from 1 again, and what the old one sent is past mending."""
        self.arrivals = arrivals
        self.ended: dict[int, int] = {}
        self.frames_owed = 0
        self.bytes_owed = 0
        for stream in self.streams.values():
            stream.cover = arrivals.high

    def restart_timers(self, now: float) -> None:
        """Every timer about this worker starts from zero."""
        self.heard_at = self.frame_at = self.resume_at = now
        self.tries = 0
        self.strikes.clear()

    def cover(self) -> int:
        """The highest frame up to which no loss can hold anything that is still wanted."""
        return min((stream.cover for stream in self.streams.values()), default=self.arrivals.high)

    def wanted(self) -> dict[int, int]:
        """What to ask for again: with a hole, the streams that it may concern; else, after silence, all."""
        top = self.arrivals.top_hole()
        return {
            sid: stream.next
            for sid, stream in self.streams.items()
            if stream.named and (top == 0 or stream.cover < top)
        }

    def open_sids(self) -> Iterator[int]:
        """The lease: what the gateway still wants."""
        return (sid for sid, stream in self.streams.items() if stream.phase is not Phase.CANCELLING)

    def take_ended(self) -> tuple[int, ...]:
        """Terminals to acknowledge in the credit being built; each is named in a few credits."""
        sids = tuple(self.ended)
        for sid in sids:
            self.ended[sid] -= 1
            if not self.ended[sid]:
                del self.ended[sid]
        return sids

    def service_at(self, timing: Timing) -> float | None:
        """When this worker needs attention next, judging by what is known now."""
        if not self.streams:
            return self.credit_due(timing) if self.ended else None
        when = min(self.credit_due(timing), self.heard_at + timing.frozen)
        if not self.arrivals.whole:
            return min(when, self.resume_at)
        return min(when, self.silent_at(timing)) if timing.tail_timer else when

    def credit_due(self, timing: Timing) -> float:
        """When the next credit is due: by the clock, or for a terminal that waits for its acknowledgement."""
        regular = self.credit_at + timing.credit_every
        return regular if self.acknowledge_at is None else min(regular, self.acknowledge_at)

    def silent_at(self, timing: Timing) -> float:
        """When silence justifies the next resume."""
        return max(self.frame_at + timing.silence, self.resume_at)
