"""The names on the bus: one table says who publishes and who listens where.

Subjects carry the sender where that matters, so that the server's permissions can hold each identity to its own name.
"""

from typing import Literal, NamedTuple

PREFIX = "ef"
INBOX = "_INBOX"
USAGE = "USAGE"
"""The stream that keeps every usage record."""
USAGE_READ = f"$JS.API.DIRECT.GET.{USAGE}"
"""Where records of that stream are asked for."""

Kind = Literal["provision", "gateway", "worker"]
"""The three kinds of identity. `provision` makes streams and buckets and takes no part in anything else."""


class Subject(NamedTuple):
    """One row: a pattern with `{gid}` and `{wid}`, who may publish and who may subscribe."""

    pattern: str
    publisher: Literal["gateway", "worker"]
    subscriber: Literal["gateway", "worker", "both"]
    carries: str


TABLE: tuple[Subject, ...] = (
    Subject("ann.{wid}", "worker", "gateway", "Ann"),
    Subject("ghb.{gid}", "gateway", "both", "Ghb"),
    Subject("cnt.{gid}", "gateway", "gateway", "Counts"),
    Subject("cfg", "gateway", "gateway", "Changed"),
    Subject("w.{wid}.job.{gid}", "gateway", "worker", "Job"),
    Subject("w.{wid}.credit.{gid}", "gateway", "worker", "Credit"),
    Subject("w.{wid}.cancel.{gid}", "gateway", "worker", "Cancel"),
    Subject("w.{wid}.ctl.{gid}", "gateway", "worker", "Ctl"),
    Subject("g.{gid}.f.{wid}", "worker", "gateway", "Frame"),
    Subject("offer.{gid}.{wid}", "worker", "gateway", "Offer"),
    Subject("usage.g.{gid}", "gateway", "gateway", "Open | Check | Close"),
    Subject("usage.w.{wid}", "worker", "gateway", "Orphan"),
)


class Right(NamedTuple):
    """What a kind of identity may do beside `TABLE`: a whole subject, in which `{name}` is the identity's own name."""

    identity: Kind
    verb: Literal["publish", "subscribe"]
    pattern: str
    purpose: str


RIGHTS: tuple[Right, ...] = (
    Right(
        "gateway",
        "subscribe",
        INBOX + ".{name}.>",
        "answers to its jobs; word that nobody listens, or that a record is kept; records",
    ),
    Right("gateway", "publish", USAGE_READ, "reading usage records"),
    Right("worker", "subscribe", INBOX + ".{name}.>", "word that nobody listens; that a record is kept"),
    Right("worker", "publish", INBOX + ".*.*.j.{name}.*", "answers to jobs, of any gateway, epoch and stream"),
    Right("provision", "subscribe", INBOX + ".{name}.>", "answers of JetStream"),
    Right("provision", "publish", "$JS.API.>", "making streams, buckets and consumers"),
)


def inbox(name: str, epoch: str) -> str:
    """What all reply subjects of one life of a process begin with."""
    return f"{INBOX}.{name}.{epoch}"


def answer(inbox: str, wid: str, sid: int) -> str:
    """Where `wid` answers job `sid` of the gateway with that inbox: the subject names who answers."""
    return f"{inbox}.j.{wid}.{sid}"


def is_answer(reply: str, wid: str, gid: str) -> bool:
    """Whether `reply` is a subject on which `wid` answers jobs of `gid`, and not of somebody else."""
    parts = reply.split(".")
    return len(parts) == 6 and (parts[0], parts[1], parts[3], parts[4]) == (INBOX, gid, "j", wid)  # noqa: PLR2004


def ann(wid: str) -> str:
    """Where worker `wid` announces itself; `*` to hear all."""
    return f"{PREFIX}.ann.{wid}"


def cfg() -> str:
    """Hints that the store changed."""
    return f"{PREFIX}.cfg"


def ghb(gid: str) -> str:
    """Heartbeats of gateway `gid`; `*` to hear all."""
    return f"{PREFIX}.ghb.{gid}"


def job(wid: str, gid: str) -> str:
    """Jobs from `gid` for `wid`."""
    return f"{PREFIX}.w.{wid}.job.{gid}"


def credit(wid: str, gid: str) -> str:
    """Credits from `gid` for `wid`."""
    return f"{PREFIX}.w.{wid}.credit.{gid}"


def cancel(wid: str, gid: str) -> str:
    """Cancels from `gid` for `wid`."""
    return f"{PREFIX}.w.{wid}.cancel.{gid}"


def ctl(wid: str, gid: str) -> str:
    """Operator commands from `gid` for `wid`."""
    return f"{PREFIX}.w.{wid}.ctl.{gid}"


def frames(gid: str, wid: str) -> str:
    """Frames from `wid` for `gid`."""
    return f"{PREFIX}.g.{gid}.f.{wid}"


def usage_of_gateway(gid: str) -> str:
    """Usage records of gateway `gid`."""
    return f"{PREFIX}.usage.g.{gid}"


def usage_of_worker(wid: str) -> str:
    """Usage records of worker `wid`."""
    return f"{PREFIX}.usage.w.{wid}"


def last(subject: str) -> str:
    """The sender's name: the last token of a subject."""
    return subject.rsplit(".", 1)[1]
