"""The names on the bus: one table says who publishes and who listens where.

Subjects carry the sender where that matters, so that the server's permissions can hold each identity to its own name.
"""

from typing import Literal, NamedTuple

PREFIX = "ef"


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


def ann(wid: str) -> str:
    """Where worker `wid` announces itself; `*` to hear all."""
    return f"{PREFIX}.ann.{wid}"


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


def last(subject: str) -> str:
    """The sender's name: the last token of a subject."""
    return subject.rsplit(".", 1)[1]
