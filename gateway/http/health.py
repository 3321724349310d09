"""Is it alive, can it serve, and what does it measure?

`/health` is about this process alone: a model that loads for minutes must not get the gateway restarted. `/ready` is
about serving: the bus is there, a worker is ready and moves, nothing drains.
"""

import asyncio
from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from gateway.context import House


def health_routes(house: House, health_path: str, ready_path: str) -> list[HTTPRouteHandler]:
    """The two probes at their configured paths; no key is needed."""

    @get(health_path)
    async def health() -> dict[str, str]:
        """200 as long as the process turns its loop."""
        return {"status": "ok"}

    @get(ready_path)
    async def ready() -> Response[dict[str, Any]]:
        """200 when a request can be served now, else 503; the body says what is missing, and what is of concern."""
        workers = [
            {
                "name": view.wid,
                "state": "gone" if view.gone else view.ann.state,
                "models": [f"{v.model}@{v.version}" for v in view.ann.versions],
                "reason": "two processes use this name" if view.doubled else view.ann.reason,
                "progress": round(view.ann.load_progress, 3),
            }
            for view in house.fleet.workers.values()
        ]
        now = asyncio.get_running_loop().time()
        obstacles = [obstacle for ask in house.obstacles if (obstacle := ask())]
        missing = [
            what
            for what, lacks in (
                ("draining", house.draining.is_set()),
                ("usage", not house.quotas.restored),
                ("one store", bool(obstacles)),
                ("nats", not house.streams.connected or house.freshness.cut_off(now)),
                ("keys", house.freshness.stale(now)),
                ("worker", all(worker["state"] != "ready" for worker in workers)),
            )
            if lacks
        ]
        body = {
            "status": "not ready" if missing else "ready",
            "missing": missing,
            "concerns": [*obstacles, *(concern for ask in house.concerns if (concern := ask()))],
            "workers": workers,
        }
        return Response(body, status_code=503 if missing else 200, headers={"cache-control": "no-store"})

    return [health, ready]


def metrics_route(house: House) -> HTTPRouteHandler:
    """`/metrics`, for the operators' door."""

    @get("/metrics")
    async def metrics() -> Response[bytes]:
        """Gateway and fleet in Prometheus' text format."""
        return Response(house.meters.scrape(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    return metrics
