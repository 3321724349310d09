"""What the two ends tell their shells to do, and what they count.

A shell takes `instructions()` after every call and obeys them in order. None of them needs an answer.
"""

import msgspec

from shared.wire import Accept, Cancel, Credit, Event, Frame, Job, Nack


class SendCredit(msgspec.Struct, frozen=True, gc=False):
    """Gateway: publish `credit` for worker `wid`, with a reply subject so that nobody listening is noticed."""

    wid: str
    credit: Credit


class SendCancel(msgspec.Struct, frozen=True, gc=False):
    """Gateway: publish `cancel` for worker `wid`, with a reply subject."""

    wid: str
    cancel: Cancel


class ResendJob(msgspec.Struct, frozen=True, gc=False):
    """Gateway: the same job with the same sid once more. At most once per sid."""

    wid: str
    sid: int


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Gateway: the job's reply says yes. At most once per sid; events may have been delivered before it."""

    sid: int
    accept: Accept


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Gateway: the job's reply says no. The sid is over."""

    sid: int
    nack: Nack


class Unanswered(msgspec.Struct, frozen=True, gc=False):
    """Gateway: neither reply nor frame by the second deadline. The sid is over; its cancel is under way."""

    sid: int


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Gateway: the next events of one stream, without gap or duplicate. Nothing follows an End or Fail."""

    sid: int
    events: tuple[Event, ...]


GatewayInstruction = SendCredit | SendCancel | ResendJob | Accepted | Refused | Unanswered | Deliver


class Answer(msgspec.Struct, frozen=True):
    """Worker: answer the request whose handle is `reply_to`."""

    reply_to: object
    reply: Accept | Nack


class Start(msgspec.Struct, frozen=True):
    """Worker: a new job. Decide, call `answer`, then run it. Exactly once per sid."""

    gid: str
    sid: int
    job: Job


class SendFrame(msgspec.Struct, frozen=True):
    """Worker: publish `frame` for gateway `gid`, with a reply subject."""

    gid: str
    frame: Frame


class Abort(msgspec.Struct, frozen=True, gc=False):
    """Worker: stop this request, whether it was answered yet or not.

    `final`: the stream is forgotten, nothing more may be fed for it (a new process of the gateway may use the same sid
    again). Otherwise, after a cancel, the engine's own terminal is wanted, for its usage; a final one may still follow
    if the engine takes too long.
    """

    gid: str
    sid: int
    reason: str
    final: bool


class Orphaned(msgspec.Struct, frozen=True, gc=False):
    """Worker: a stream was given up without its terminal having been acknowledged.

    Tokens `generated` so far and, of those, `acked` by the gateway; both include the ids of a resumed job.
    """

    gid: str
    aid: str
    sid: int
    generated: int
    acked: int


WorkerInstruction = Answer | Start | SendFrame | Abort | Orphaned


class GatewayCounters(msgspec.Struct):
    """Running totals of one gateway end."""

    opened: int = 0
    accepted: int = 0
    refused: int = 0
    unanswered: int = 0
    jobs_resent: int = 0
    frames: int = 0
    bytes: int = 0
    events: int = 0
    frames_stale: int = 0
    frames_duplicate: int = 0
    duplicates_dropped: int = 0
    early_dropped: int = 0
    strays: int = 0
    holes: int = 0
    credits: int = 0
    resumes: int = 0
    replays: int = 0
    gone: int = 0
    cancels: int = 0
    cancels_unanswered: int = 0
    workers_lost: int = 0
    workers_frozen: int = 0
    workers_restarted: int = 0
    disconnect_ends: int = 0


class WorkerCounters(msgspec.Struct):
    """Running totals of one worker end. `lease_aborts`, `credit_aborts`: streams given up by either rule."""

    jobs: int = 0
    jobs_repeated: int = 0
    jobs_refused: int = 0
    tombstone_refusals: int = 0
    frames: int = 0
    events: int = 0
    replays: int = 0
    gone: int = 0
    credits: int = 0
    credits_stale: int = 0
    stalls: int = 0
    cancels: int = 0
    lease_aborts: int = 0
    credit_aborts: int = 0
    gateways_restarted: int = 0
    gateways_lost: int = 0
    disconnect_ends: int = 0
    terminals_expired: int = 0
    orphans: int = 0
