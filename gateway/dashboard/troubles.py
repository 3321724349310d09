"""What is wrong now, worst first, each with what to do about it."""

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from gateway.context import House
from gateway.core.fleet import WorkerView
from gateway.core.pulse import Pulse

Grade = Literal["page", "warn"]

_MINUTE = 60
_LONG_QUEUE_S = 5.0
_MANY_REFUSED = 10
_NAMES_SHOWN = 3


class Trouble(msgspec.Struct, frozen=True):
    """One thing that is wrong: `page` needs somebody now, `warn` today. `where` is a page that tells more, or ""."""

    grade: Grade
    what: str
    todo: str
    where: str = ""


def troubles(house: House, now: float) -> list[Trouble]:
    """All that can be seen from this gateway at `now`, by the loop's clock."""
    found = [*_gateway(house, now), *_fleet(house), *_requests(house.pulse.pulse)]
    found += (
        Trouble("page", _sentence(said), "Nobody is let in until it is mended.") for said in _said(house.obstacles)
    )
    found += (Trouble("warn", _sentence(said), "The gateway's log says more.") for said in _said(house.concerns))
    return sorted(found, key=lambda trouble: trouble.grade != "page")


def _gateway(house: House, now: float) -> Iterator[Trouble]:
    if house.draining.is_set():
        yield Trouble("warn", "This gateway is shutting down.", "Running answers may finish; new requests are refused.")
    if not house.streams.connected or house.freshness.cut_off(now):
        yield Trouble(
            "page",
            "The connection to NATS is down: no request can reach a worker.",
            "See whether NATS runs and can be reached from here. The gateway reconnects by itself.",
        )
    if house.freshness.stale(now):
        yield Trouble(
            "page",
            "Keys have changed and the store cannot be read: all requests are refused.",
            "See whether the database runs. Keys are read again as soon as it answers.",
        )
    if not house.quotas.restored:
        yield Trouble(
            "page",
            "What was used before this start is still being read: requests wait for it.",
            "It takes seconds. If it does not end, see whether the database and NATS answer.",
        )


def _fleet(house: House) -> Iterator[Trouble]:
    views = sorted(house.fleet.workers.values(), key=lambda view: view.wid)
    if not house.fleet.serving():
        yield Trouble(
            "page",
            "No worker is ready: every request is refused or waits."
            if views
            else "No worker has announced itself: every request is refused.",
            "Start a worker, or see below what keeps those that there are.",
        )
    for view in views:
        trouble = _worker(view)
        if trouble is not None:
            yield trouble


def _worker(view: WorkerView) -> Trouble | None:
    if view.doubled:
        what = f"Two processes call themselves {view.wid}."
        return Trouble("page", what, "Give each worker a name of its own, and restart one of them.")
    if view.gone:
        what = f"Worker {view.wid} has gone silent."
        return Trouble("warn", what, "If it was not stopped on purpose, see whether its machine and process live.")
    if view.ann.state in {"starting", "loading"}:
        what = f"Worker {view.wid} is loading, {view.ann.load_progress:.0%} done."
        return Trouble("warn", what, view.ann.reason.capitalize() or "It serves when it is done.")
    if view.ann.state == "draining":
        return Trouble("warn", f"Worker {view.wid} takes nothing new.", "It was told to stop, and ends by itself.")
    return None


def _requests(pulse: Pulse) -> Iterator[Trouble]:
    figures = pulse.figures
    failed = int(sum(pulse.tracks["failed"].recent(pulse.second, _MINUTE)))
    if failed:
        yield Trouble(
            "page",
            f"{_requests_of(failed)} failed in the last minute, by no fault of the clients.",
            "The gateway's log says why, under outcome. Full queues need more workers; lost workers, a look at them.",
        )
    if figures.queued and figures.wait_s > _LONG_QUEUE_S:
        yield Trouble(
            "warn",
            f"{_requests_of(figures.queued)} wait; one more would wait about {figures.wait_s:.0f} s.",
            "More workers shorten the queue; limits on the tenants that use most keep it fair.",
            "/tenants",
        )
    turned = {
        tracks.name: int(sum(tracks.limited.recent(pulse.second, _MINUTE)))
        for tracks in pulse.tenants.values()
        if tracks.limited.total
    }
    most = sorted((name for name, count in turned.items() if count >= _MANY_REFUSED), key=lambda name: -turned[name])
    for name in most[:_NAMES_SHOWN]:
        yield Trouble(
            "warn",
            f"{name} ran into its limits {turned[name]} times in the last minute.",
            "Its programs should slow down when told to; or its limits are too low.",
            f"/tenants/{name}",
        )


def _said(askers: list[Callable[[], str]]) -> list[str]:
    return [said for ask in askers if (said := ask())]


def _requests_of(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."
