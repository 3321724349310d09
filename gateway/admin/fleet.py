"""`/admin/v1/workers` and `/admin/v1/models`: what runs, as this gateway sees it at this moment."""

from typing import Annotated

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter

from gateway.admin.problems import READ, documented
from gateway.admin.sessions import needs
from gateway.context import House
from gateway.core.fleet import WorkerView
from shared.errors import NotFoundError
from shared.settings import ModelSettings


class Served(msgspec.Struct, frozen=True):
    """One version of a model on one worker, or on several. Lengths in tokens."""

    model: str
    version: str
    digest: str
    context: int
    max_output: int
    features: tuple[str, ...]


class SlotCounts(msgspec.Struct, frozen=True):
    """How many requests a worker holds at once, and what they are doing."""

    total: int
    free: int
    prefill: int
    decode: int


class CacheSize(msgspec.Struct, frozen=True):
    """Key/value cache, in tokens; `bits` per cached value."""

    total: int
    free: int
    bits: float


class Speeds(msgspec.Struct, frozen=True):
    """Tokens per second: measured in prefill, and the bound on decoding. Inter-token latency by batch size, in ms."""

    prefill_tps: float
    bound_tps: float
    itl_ms: dict[str, float]


class Drafts(msgspec.Struct, frozen=True):
    """Speculation: where drafts come from, how long they are, and what became of them."""

    kind: str
    length: int
    accepted: int
    proposed: int
    tokens_per_step: float


class Hardware(msgspec.Struct, frozen=True):
    """What it runs on; memory in bytes."""

    kind: str
    driver: str
    runtime: str
    kernel: str
    memory: int
    temperature_c: float | None
    power_w: float | None


class Worker(msgspec.Struct, frozen=True):
    """One worker. `state` is `gone` once it was silent for 2.5 s; `reason` says what is wrong in words.

    `ours` is how many of its requests are this gateway's.
    """

    name: str
    state: str
    reason: str
    pool: str
    versions: tuple[Served, ...]
    slots: SlotCounts
    queue: int
    ours: int
    kv: CacheSize
    speed: Speeds
    draft: Drafts
    device: Hardware
    restarts: int
    load_failures: int
    load_progress: float


class ModelVersion(Served, frozen=True):
    """A version and the workers that have it; `ready` of them can serve it now."""

    workers: tuple[str, ...]
    ready: int


class Model(msgspec.Struct, frozen=True):
    """A name that tenants can ask for, and what it means: any version where `version` is empty."""

    name: str
    model: str
    version: str
    max_input: int
    max_output: int
    versions: tuple[ModelVersion, ...]


class Workers(msgspec.Struct, frozen=True):
    """All of them, by name."""

    data: tuple[Worker, ...]


class Models(msgspec.Struct, frozen=True):
    """All of them, by name."""

    data: tuple[Model, ...]


def fleet_routes(house: House) -> list[HTTPRouteHandler]:
    """Three routes."""

    @get("/workers", opt=needs("fleet"), responses=documented(*READ), tags=["fleet"])
    async def list_workers() -> Workers:
        """Every worker that has announced itself."""
        return Workers(tuple(shown(view) for _, view in sorted(house.fleet.workers.items())))

    @get("/workers/{worker:str}", opt=needs("fleet"), responses=documented(*READ, 404), tags=["fleet"])
    async def get_worker(
        worker: Annotated[str, PathParameter(max_length=63, description="The worker's name.")],
    ) -> Worker:
        """One worker."""
        view = house.fleet.workers.get(worker)
        if view is None:
            raise NotFoundError(f"No worker {worker!r} has announced itself.")
        return shown(view)

    @get("/models", opt=needs("fleet"), responses=documented(*READ), tags=["fleet"])
    async def list_models() -> Models:
        """Every model that tenants can ask for: configured, or announced by a worker."""
        names = sorted(house.fleet.models() | {entry.name for entry in house.settings.models})
        return Models(tuple(_model(house, house.settings.model(name)) for name in names))

    return [list_workers, get_worker, list_models]


def shown(view: WorkerView) -> Worker:
    """A worker as it is shown."""
    said = view.ann
    return Worker(
        name=view.wid,
        state="gone" if view.gone else said.state,
        reason="two processes use this name" if view.doubled else said.reason,
        pool=said.pool,
        versions=tuple(
            Served(v.model, v.version, v.digest, v.context, v.max_output, v.features) for v in said.versions
        ),
        slots=SlotCounts(said.slots.total, said.slots.free, said.slots.prefill, said.slots.decode),
        queue=said.queue,
        ours=view.ours,
        kv=CacheSize(said.kv.total, said.kv.free, said.kv.bits),
        speed=Speeds(
            said.speed.prefill_tps, said.speed.bound_tps, {str(size): ms for size, ms in said.speed.itl_ms.items()}
        ),
        draft=Drafts(
            said.draft.kind, said.draft.length, said.draft.accepted, said.draft.proposed, said.draft.tokens_per_step
        ),
        device=Hardware(**msgspec.structs.asdict(said.device)),
        restarts=said.restarts,
        load_failures=said.load_failures,
        load_progress=said.load_progress,
    )


def _model(house: House, entry: ModelSettings) -> Model:
    name = entry.model or entry.name
    found: dict[str, list[tuple[WorkerView, Served]]] = {}
    for view, v in house.fleet.versions(name):
        if entry.version in ("", v.version):
            served = Served(v.model, v.version, v.digest, v.context, v.max_output, v.features)
            found.setdefault(v.version, []).append((view, served))
    versions = tuple(
        ModelVersion(
            **msgspec.structs.asdict(having[0][1]),
            workers=tuple(sorted(view.wid for view, _ in having)),
            ready=sum(view.ann.state == "ready" and not view.gone for view, _ in having),
        )
        for _, having in sorted(found.items())
    )
    return Model(entry.name, name, entry.version, entry.max_input, entry.max_output, versions)
