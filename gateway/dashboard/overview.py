"""The first page: what goes on now, what is wrong with it, and whom it serves."""

import asyncio
from typing import Any, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from gateway.context import House
from gateway.dashboard.figures import HEIGHT, TABLE, WIDTH, figures, minutes, shares
from gateway.dashboard.pages import Asked, fragment, page
from gateway.dashboard.troubles import troubles
from gateway.store.store import Store

MOST_SHARES: Final = 12


def overview_routes(house: House, store: Store) -> list[HTTPRouteHandler]:
    """One route."""

    @get("/", include_in_schema=False)
    async def overview(request: Asked) -> Template:
        """The whole page."""
        rows = minutes(house.pulse, house.pulse.pulse.tracks, [name for name, _ in TABLE])
        return page(
            request,
            "overview.html",
            store.now_ms,
            gateway=house.settings.gateway.name,
            columns=[label for _, label in TABLE],
            minutes=rows,
            **_context(house),
        )

    return [overview]


def overview_pieces(house: House) -> dict[str, str]:
    """Those parts of it that change."""
    context = _context(house, drawn=False)
    texts = {f"{figure.id}-value": figure.value for figure in context["figures"]}
    texts |= {f"{figure.id}-note": figure.note for figure in context["figures"]}
    return texts | {
        "troubles": fragment("_troubles.html", 0, troubles=context["troubles"]),
        "shares": fragment("_shares.html", 0, shares=context["shares"], more=context["more"]),
    }


def _context(house: House, *, drawn: bool = True) -> dict[str, Any]:
    pulse = house.pulse.pulse
    found = shares(pulse)
    return {
        "figures": figures(pulse, drawn=drawn),
        "width": WIDTH,
        "height": HEIGHT,
        "troubles": troubles(house, asyncio.get_running_loop().time()),
        "shares": found[:MOST_SHARES],
        "more": len(found[MOST_SHARES:]),
    }
