"""llama.cpp's server inside this process: its parameters, its start and its end, what a request looks like to it."""

import asyncio
import importlib.metadata
import os
import secrets
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from shared.errors import EngineError
from workers.engines.base import EngineRequest, EngineSpec
from workers.engines.llamacpp_http import Address, hung_up

log = structlog.get_logger("llamacpp")

_SPARE_HTTP_THREADS: Final = 8
_HANG_UP_S: Final = 5.0
_RANDOM_SEED: Final = 0xFFFFFFFF
_MIB: Final = 1 << 20


def _library() -> Any:
    """The llama.cpp binding, imported late: only this engine needs it, and OpenMP reads the environment once."""
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    try:
        import xllamacpp  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise EngineError("the llama.cpp engine needs the package xllamacpp (evenflow[embedded])") from error
    return xllamacpp


def runtime_version() -> str:
    """Name and version of the binding."""
    return f"xllamacpp {importlib.metadata.version('xllamacpp')}"


def default_threads() -> int:
    """All physical cores but one: with every core taken, one busy neighbour stalls every step (8 tok/s against 60)."""
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(path.read_text(encoding="ascii"))
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings) - 1)


def _params(library: Any, spec: EngineSpec, path: Path, key: str, *, drafting: bool) -> Any:
    params = library.CommonParams()
    params.model.path = str(path)
    params.n_parallel = spec.slots
    params.n_ctx = spec.slots * spec.context
    params.kv_unified = False
    params.ctx_shift = False
    # A prefill can only be left between batches, and other streams wait for one: small batches keep both short.
    params.n_batch = params.n_ubatch = spec.batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = spec.threads or default_threads()
    params.n_threads_http = 2 * spec.slots + _SPARE_HTTP_THREADS
    params.port = 0
    # A stream's thread looks up this often (seconds): an end with a stream still open would take 30 otherwise.
    params.sse_ping_interval = 1
    params.api_keys = [key]
    # No cache outside the slots: it would be shared by tenants.
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.fit_params = False
    params.warmup = True
    params.ui = False
    params.verbosity = 0
    if drafting and spec.draft.kind == "ngram":
        # ngram-cache and ngram-mod keep text across requests; this one looks only at the slot's own.
        params.speculative.types = [library.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n = spec.draft.size
        params.speculative.ngram_simple.size_m = spec.draft.length
    elif drafting and spec.draft.kind == "model":
        params.speculative.types = [library.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = spec.draft.path
        params.speculative.draft.n_max = spec.draft.length
    return params


class LlamaServer:
    """One running server. Its object lives in a list, so that the last reference can be dropped in a thread."""

    def __init__(self, held: list[Any], address: Address) -> None:
        self._held = held
        self.address = address

    @classmethod
    async def start(cls, spec: EngineSpec, path: Path, *, drafting: bool) -> "LlamaServer":
        """Load the model (about half a second for the embedded one). Raises EngineError."""
        key = secrets.token_urlsafe(32)

        def create() -> Any:
            library = _library()
            return library.Server(_params(library, spec, path, key, drafting=drafting))

        try:
            held = [await asyncio.to_thread(create)]
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise EngineError(f"llama.cpp cannot load {path.name}: {error}") from error
        url = urlsplit(held[0].listening_address)
        if url.hostname is None or url.port is None:
            raise EngineError(f"llama.cpp does not listen: {held[0].listening_address!r}")
        return cls(held, Address(url.hostname, url.port, key))

    async def stop(self) -> None:
        """End the server and free its memory, once nobody here holds a connection to it. Idempotent."""
        if self._held:
            try:
                await hung_up(self.address, _HANG_UP_S)
            except TimeoutError:
                log.warning("connections_left", port=self.address.port)
            await asyncio.to_thread(self._held.clear)


def completion_body(
    request: EngineRequest, prompt: tuple[int, ...], *, slot: int, reuse: bool, n_predict: int
) -> dict[str, Any]:
    """The body of `POST /completion`. Every sampling field is sent: the server's own defaults are not neutral."""
    sampling = request.sampling
    penalised = sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1
    body: dict[str, Any] = {
        "prompt": prompt,
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "timings_per_token": True,
        "cache_prompt": reuse,
        "id_slot": slot,
        "n_predict": n_predict,
        "seed": _RANDOM_SEED if request.seed is None else request.seed % _RANDOM_SEED,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_last_n": len(request.prompt) + request.max_tokens if penalised else 0,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_penalty": sampling.repetition_penalty,
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
        "ignore_eos": request.min_tokens > 1,
        "response_fields": ["content", "tokens", "stop", "stop_type", "tokens_predicted", "timings"],
    }
    if request.top_logprobs is not None:
        body["n_probs"] = max(1, request.top_logprobs)
    if request.grammar is not None:
        body["json_schema"] = grammar_schema(request)
    return body


def grammar_schema(request: EngineRequest) -> Any:
    """The JSON schema that a request's constraint amounts to."""
    if request.grammar is None or request.grammar.kind == "json_object":
        return {"type": "object"}
    return request.grammar.schema
