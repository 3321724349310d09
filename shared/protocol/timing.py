"""Every constant of the stream protocol, in one place."""

import msgspec

from shared.errors import ProtocolError

KIB = 1024


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """All times in seconds, all sizes in bytes. Both ends must agree on none of them exactly, only roughly.

    The booleans at the end switch single safety devices off, so that tests can show what each of them prevents. They
    are never off in service.
    """

    accept_base: float = 0.25
    """Deadline for a job's answer: `accept_base` + `accept_per_kib` for each KiB of the encoded job; twice in all."""
    accept_per_kib: float = 0.001
    cancel_resend: float = 0.2
    cancel_give_up: float = 3.0
    """A cancelled stream is cancelled again every `cancel_resend` until its terminal, at most this long."""
    tombstone: float = 60.0
    """How long a worker remembers a stream id that is over, or that was cancelled before its job came."""
    tombstones: int = 65_536
    """At most so many of them per gateway; the oldest go first."""
    credit_every: float = 0.2
    credit_frames: int = 32
    """A credit is due after so many seconds or frames, or a quarter of the byte window, whichever comes first."""
    credit_gap: float = 0.01
    """Terminals are acknowledged at once, but credits to one worker keep this distance: a burst shares one."""
    ended_repeats: int = 3
    """In how many credits a terminal is acknowledged by name (the cumulative ack covers it as well)."""
    window_frames: int = 512
    window_bytes: int = 4 * KIB * KIB
    """Frames and bytes that may be on their way, per pair; also before the first credit."""
    frame_bytes: int = 256 * KIB
    """A frame is closed at this size, well below what any NATS server takes."""
    lease: float = 1.0
    """A worker aborts a stream that the gateway's list has lacked for so long."""
    stop_emitting: float = 1.0
    abort_uncredited: float = 3.0
    """Without any credit a worker first holds its frames back, then gives that gateway's streams up."""
    silence: float = 0.3
    resume_backoff: tuple[float, ...] = (0.3, 0.6, 1.2, 2.0)
    """After `silence` with streams open the gateway asks again; requests that bring nothing new back off."""
    terminal_buffer: float = 10.0
    """How long a finished stream waits for its acknowledgement."""
    frozen: float = 2.5
    """A worker with streams from which nothing was heard for so long is given up."""
    lag: float = 0.2
    """A shell whose loop was late by more than this calls `lagged` once its socket is drained."""
    disconnect_end: float = 10.0
    """Each end gives its streams up by itself after so long without its own connection."""
    no_responders: int = 3
    no_responders_span: float = 0.5
    """So many in a row, over at least so long, mean that the peer is dead ..."""
    reconnect_grace: float = 3.0
    """... but never so soon after one's own reconnect."""
    linger: float = 0.005
    """How long text may wait for company; a stream's first event and its terminal never wait."""

    replay: bool = True
    tail_timer: bool = True
    tombstone_on: bool = True
    terminal_ack: bool = True
    lease_on: bool = True

    def accept_deadline(self, job_bytes: int) -> float:
        """Seconds that a job of so many encoded bytes may go unanswered, each of the two times."""
        return self.accept_base + self.accept_per_kib * job_bytes / KIB

    def backoff(self, tries: int) -> float:
        """Seconds to wait after the `tries`-th resume in a row (from 0) that brought nothing new."""
        return self.resume_backoff[min(tries, len(self.resume_backoff) - 1)]


def require(holds: bool, what: str) -> None:
    """Raise ProtocolError saying `what` unless `holds`: for values that no correct peer sends."""
    if not holds:
        raise ProtocolError(what)
