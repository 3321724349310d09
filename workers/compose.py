"""From a worker's settings to its engine."""

from shared.errors import SettingsError
from shared.settings import WorkerSettings
from workers.engines.base import DraftSpec, Engine, EngineSpec

NULL_MODEL = "null"


def make_engine(worker: WorkerSettings) -> Engine:
    """The engine that the settings name; its library is imported here and not before. Raises SettingsError."""
    match worker.engine:
        case "null":
            from workers.engines.null import NullEngine  # noqa: PLC0415

            return NullEngine()
        case "llamacpp":
            from workers.engines.llamacpp import LlamaCppEngine  # noqa: PLC0415

            return LlamaCppEngine()
        case "exllamav2":
            raise SettingsError("workers.engine: exllamav2 is not served by this release yet")


def spec_for(worker: WorkerSettings) -> EngineSpec:
    """What that engine is to load."""
    draft = worker.draft
    return EngineSpec(
        model=NULL_MODEL if worker.engine == "null" and worker.model == WorkerSettings().model else worker.model,
        version=worker.version,
        path=worker.path,
        sha256=worker.sha256,
        slots=worker.slots,
        context=worker.context,
        max_output=worker.max_output,
        threads=worker.threads,
        batch=worker.batch,
        prefix_cache=worker.prefix_cache,
        draft=DraftSpec(kind=draft.kind, length=draft.length, size=draft.size, path=draft.path),
        options={
            "mode": worker.null_mode,
            "rate": worker.null_rate,
            "paced": worker.null_paced,
            "tokens": worker.null_tokens,
        },
    )
