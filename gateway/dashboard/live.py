"""Live figures: one event a second to whoever watches, with those pieces of the page that differ from the last one.

A stream ends after a minute, and the browser comes again: so that a session that is over ends what it watches, too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from gateway.context import House
from gateway.core.pulse import Track
from gateway.dashboard.asking import said
from gateway.dashboard.figures import history, latest, tenant_tracks
from gateway.dashboard.overview import overview_pieces
from gateway.dashboard.pages import Asked
from gateway.dashboard.tenants import TenantsRoom
from gateway.store.store import Store
from shared.errors import InvalidRequestError, UnavailableError

WATCHERS: Final = 64
"""Streams at once."""
LIFE_S: Final = 60.0
_PATIENCE_S: Final = 5.0
_COME_AGAIN_MS: Final = 500

Pieces = Callable[[], dict[str, str]]
"""Makes the pieces of a page as they are now: HTML by the id of the element it belongs into."""


class Update(msgspec.Struct, frozen=True):
    """One event: the time of the last second, in s since 1970, its `values` by series, and pieces that changed."""

    at: int
    values: dict[str, float | None]
    pieces: dict[str, str]


class Live:
    """Everybody who watches."""

    def __init__(self, house: House, store: Store, tenants: TenantsRoom) -> None:
        self.watchers = 0
        self._house = house
        self._store = store
        self._tenants = tenants
        self._overview: tuple[int, dict[str, str]] = (-1, {})

    def routes(self) -> list[HTTPRouteHandler]:
        """The stream, and the series up to now."""

        @get("/live", include_in_schema=False)
        async def live(request: Asked) -> Stream:
            """Updates of one page."""
            if self.watchers >= WATCHERS:
                raise UnavailableError("Too many dashboards watch this gateway.", code="overloaded", retry_after=5)
            pieces, tracks = await self._of(request)
            return Stream(self._updates(pieces, tracks), media_type="text/event-stream; charset=utf-8")

        @get("/live/history", include_in_schema=False)
        async def series(request: Asked) -> Response[bytes]:
            """The series of the last 15 minutes."""
            _, tracks = await self._of(request)
            told = history(self._house.pulse, tracks())
            return Response(msgspec.json.encode(told), media_type="application/json")

        return [live, series]

    async def _of(self, request: Asked) -> tuple[Pieces, Callable[[], dict[str, Track]]]:
        """What the page that asks needs."""
        pulse = self._house.pulse.pulse
        match said(request, "room"):
            case "overview":
                return self._shared_overview, lambda: pulse.tracks
            case "tenants":
                return await self._tenants.list_pieces(request), dict
            case "tenant":
                pieces, tenant = await self._tenants.tenant_pieces(said(request, "tenant"))
                return pieces, lambda: tenant_tracks(self._house.pulse, tenant)
        raise InvalidRequestError("room is overview, tenants or tenant.", param="room")

    def _shared_overview(self) -> dict[str, str]:
        """Made once a second, for all who watch it."""
        second = self._house.pulse.pulse.second
        if self._overview[0] != second:
            self._overview = second, overview_pieces(self._house)
        return self._overview[1]

    async def _updates(self, pieces: Pieces, tracks: Callable[[], dict[str, Track]]) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until, shown = loop.time() + LIFE_S, dict[str, str]()
        self.watchers += 1
        try:
            yield b"retry: %d\n\n" % _COME_AGAIN_MS
            while loop.time() < until and not self._over():
                looked = self._house.pulse.looked
                now = pieces()
                changed = {name: html for name, html in now.items() if shown.get(name) != html}
                shown |= changed
                yield event(Update(**latest(self._house.pulse, tracks()), pieces=changed))
                await _at_most(looked.wait(), _PATIENCE_S)
        finally:
            self.watchers -= 1

    def _over(self) -> bool:
        """The process is about to end."""
        return self._house.draining.is_set() and not self._house.meters.in_flight


def event(update: Update) -> bytes:
    """As server-sent events have it; JSON has no line breaks."""
    return b"data: " + msgspec.json.encode(update) + b"\n\n"


async def _at_most(waiting: Awaitable[Any], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        pass  # nobody looked: what is shown is as old as it says
