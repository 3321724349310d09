"""What is known of the workers, and which of them can take one more request. Pure.

The truth about a worker is what it announced last, and our own work in flight on it, which counts at once: polled
figures alone send a herd to whoever looked idle a moment ago. A worker that was silent for 2.5 s is not admissible
until it announces again.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from shared.wire import Ann, Version

SILENT_S = 2.5
COOL_S = 0.05
_DIGITS = re.compile(r"(\d+)")

Pool = tuple[str, str]
"""(model, version): what a queue of requests waits for."""


class WorkerView(msgspec.Struct, eq=False):
    """One worker as this gateway sees it. `ours`: our requests there. `doubled`: two processes use its name."""

    wid: str
    ann: Ann
    heard_at: float
    ours: int = 0
    cool_until: float = 0.0
    gone: bool = False
    before: str = ""
    doubled: bool = False

    def serves(self, pool: Pool) -> Version | None:
        """The version announced for `pool`."""
        for version in self.ann.versions:
            if (version.model, version.version) == pool:
                return version
        return None

    def room(self, now: float) -> int:
        """How many more requests it can start at once."""
        if self.gone or self.ann.state != "ready" or now < self.cool_until:
            return 0
        return max(0, self.ann.slots.total - self.ours)


class Fleet:
    """All workers, by name."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerView] = {}
        self._newest: dict[str, str | None] = {}  # by model; asked with every request, changed by few announcements

    def announced(self, now: float, wid: str, ann: Ann) -> bool:
        """Take an announcement in. True if something that decides about dispatching changed."""
        view = self.workers.get(wid)
        if view is None:
            self.workers[wid] = WorkerView(wid, ann, now)
            self._newest.clear()
            return True
        old = view.ann
        if old.wep == ann.wep and ann.n <= old.n:
            view.heard_at = now
            return False
        if old.wep != ann.wep:
            view.ours = 0  # the protocol ends the old epoch's streams
            view.doubled = view.doubled or ann.wep == view.before  # a process that was replaced does not come back
            view.before = old.wep
        changed = (
            view.gone or old.wep != ann.wep or old.state != ann.state or old.slots != ann.slots
            or old.versions != ann.versions
        )  # fmt: skip
        view.ann, view.heard_at, view.gone = ann, now, False
        if changed:
            self._newest.clear()
        return changed

    def silent(self, now: float) -> list[str]:
        """Workers that have just become too silent to use; they are marked and reported once."""
        fallen = [v for v in self.workers.values() if not v.gone and now - v.heard_at > SILENT_S]
        for view in fallen:
            view.gone = True
        if fallen:
            self._newest.clear()
        return [view.wid for view in fallen]

    def lost(self, wid: str, wep: str) -> None:
        """That process of `wid` is known to be dead or frozen: not admissible until it announces itself again."""
        view = self.workers.get(wid)
        if view is not None and view.ann.wep == wep:
            view.gone = True
            self._newest.clear()

    def heard_again(self, now: float) -> None:
        """Our own connection was away: nobody's silence counts until now."""
        for view in self.workers.values():
            view.heard_at = now

    def take(self, wid: str) -> None:
        """One of ours goes to `wid`."""
        self.workers[wid].ours += 1

    def give(self, wid: str, wep: str) -> None:
        """One of ours on `wid` is over; ignored if the worker has started anew since."""
        view = self.workers.get(wid)
        if view is not None and view.ann.wep == wep and view.ours > 0:
            view.ours -= 1

    def refused(self, now: float, wid: str) -> None:
        """`wid` said it was busy: leave it alone for a moment."""
        view = self.workers.get(wid)
        if view is not None:
            view.cool_until = now + COOL_S

    def pick(self, now: float, pool: Pool, avoid: Iterable[str] = ()) -> WorkerView | None:
        """The worker with most room for `pool`; ties go to the least loaded, then by name."""
        avoid = frozenset(avoid)
        best: WorkerView | None = None
        best_key: tuple[int, int] = (0, 0)
        for view in self.workers.values():
            room = view.room(now)
            if room <= 0 or view.wid in avoid or view.serves(pool) is None:
                continue
            key = (room, -view.ours)
            if best is None or key > best_key:
                best, best_key = view, key
        return best

    def versions(self, model: str) -> Iterator[tuple[WorkerView, Version]]:
        """Every announced version of `model`."""
        for view in self.workers.values():
            for version in view.ann.versions:
                if version.model == model:
                    yield view, version

    def newest(self, model: str) -> str | None:
        """The highest version of `model` on a ready worker, else the highest known one; natural order (10 after 9)."""
        if model in self._newest:
            return self._newest[model]
        ready = {v.version for w, v in self.versions(model) if w.ann.state == "ready" and not w.gone}
        known = ready or {v.version for _, v in self.versions(model)}
        newest = max(known, key=_natural, default=None)
        if newest is not None:  # names that nobody serves are the clients' text: they are not kept
            self._newest[model] = newest
        return newest

    def models(self) -> set[str]:
        """Names of all announced models."""
        return {version.model for view in self.workers.values() for version in view.ann.versions}

    def serving(self) -> int:
        """How many workers are ready."""
        return sum(not view.gone and view.ann.state == "ready" for view in self.workers.values())

    def ready(self, pool: Pool) -> list[Version]:
        """What ready workers announce for `pool`."""
        found = (
            view.serves(pool) for view in self.workers.values() if not view.gone and view.ann.state == "ready"
        )  # fmt: skip
        return [version for version in found if version is not None]


def _natural(text: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(text) if part]
