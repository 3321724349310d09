"""llama.cpp on the CPU: the engine that comes embedded.

Two lanes, one number of slots: requests that want log probabilities or a grammar run on a second server without
speculation, started at their first need, since tokens accepted from a draft carry no probabilities and nothing in a
request turns drafting off. Both share the weights by mmap; never more than `slots` requests run on both together.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from shared.errors import EngineError, ModelError
from shared.wire import Draft
from workers.engines.base import (
    Capabilities,
    EngineEvent,
    EngineRequest,
    EngineSpec,
    Failed,
    NeedsCapacity,
    Progress,
    Stats,
    TooLong,
)
from workers.engines.checks import refuse, too_long
from workers.engines.llamacpp_http import Address, Probability, call
from workers.engines.llamacpp_run import Run
from workers.engines.llamacpp_server import LlamaServer, runtime_version
from workers.engines.meter import Meter
from workers.engines.slots import Lease, PrefixSlots
from workers.engines.tickets import Desk, Ticket
from workers.gguf import Vocabulary, read_metadata
from workers.models import locate

_SELF_TEST: Final = "The capital of France is the city of"
SELF_TEST_NATS: Final = 0.5


class LlamaTokenizer:
    """The loaded model's tokenizer: the server encodes, the vocabulary decodes."""

    def __init__(self, address: Address, vocabulary: Vocabulary) -> None:
        self._address = address
        self._vocabulary = vocabulary

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """See `Tokenizer`. Raises EngineError if the server is gone."""
        try:
            body = {"content": text, "parse_special": special, "add_special": False}
            answer = await call(self._address, "/tokenize", body)
        except OSError as error:
            raise EngineError(f"llama.cpp does not answer: {error}") from error
        return msgspec.convert(answer["tokens"], list[int])

    async def decode(self, ids: tuple[int, ...]) -> str:
        """See `Tokenizer`."""
        return b"".join(self._vocabulary.pieces[n] for n in ids).decode("utf-8", "replace")


class _Lane:
    """One server and its slots."""

    def __init__(self, server: LlamaServer, slots: int) -> None:
        self.server = server
        self._slots = PrefixSlots(slots)

    def take(self, tenant: str, prompt: tuple[int, ...], *, share: bool) -> Lease:
        """A free slot: whoever has a seat at the engine's desk finds one."""
        lease = self._slots.take(tenant, prompt, share=share)
        if lease is None:
            raise EngineError("no slot is free, though a seat was")
        return lease


class _Loaded:
    """Everything that goes with one loaded model."""

    def __init__(self, spec: EngineSpec, path: Path, vocabulary: Vocabulary, main: _Lane, made: Capabilities) -> None:
        self.spec = spec
        self.path = path
        self.vocabulary = vocabulary
        self.main = main
        self.capabilities = made
        self.plain: _Lane | None = main if spec.draft.kind == "none" else None
        self.plain_lock = asyncio.Lock()
        self.desk = Desk(spec.slots)
        self.tokenizer = LlamaTokenizer(main.server.address, vocabulary)
        self.enforced: OrderedDict[bytes, bool] = OrderedDict()


class LlamaCppEngine:
    """See the module and `Engine`."""

    def __init__(self) -> None:
        self._loaded: _Loaded | None = None
        self._dead = False
        self._meter = Meter()

    @property
    def tokenizer(self) -> LlamaTokenizer:
        """See `Engine`."""
        return self._model().tokenizer

    async def load(self, spec: EngineSpec, progress: Progress) -> Capabilities:
        """See `Engine`. Raises ModelError for a file that is missing, altered or does not fit its draft."""
        if self._loaded is not None:
            raise EngineError("a model is loaded already")
        progress(0.0, "verifying the model file")
        path, digest = await asyncio.to_thread(locate, spec.path, spec.sha256)
        metadata = await asyncio.to_thread(read_metadata, path)
        vocabulary = await asyncio.to_thread(Vocabulary.from_metadata, metadata)
        _check_context(spec, metadata)
        if spec.draft.kind == "model":
            await asyncio.to_thread(_check_draft, Path(spec.draft.path), vocabulary)
        progress(0.2, "loading the model")
        server = await LlamaServer.start(spec, path, drafting=True)
        try:
            made = await self._describe(spec, metadata, vocabulary, digest, server)
            loaded = _Loaded(spec, path, vocabulary, _Lane(server, spec.slots), made)
            progress(0.8, "self-test")
            await _self_test(server.address, loaded.tokenizer)
        except BaseException:
            await server.stop()
            raise
        self._loaded, self._dead, self._meter = loaded, False, Meter()
        progress(1.0, "ready")
        return made

    async def _describe(
        self, spec: EngineSpec, metadata: dict[str, Any], vocabulary: Vocabulary, digest: str, server: LlamaServer
    ) -> Capabilities:
        try:
            props = await call(server.address, "/props")
        except OSError as error:
            raise EngineError(f"llama.cpp does not answer: {error}") from error
        template = str(metadata.get("tokenizer.chat_template") or "")
        features = ["json_object", "json_schema", "logprobs", "resume", "text"]
        features += ["chat"] if template else []
        return Capabilities(
            model=spec.model,
            version=spec.version,
            digest=digest,
            vocab_hash=vocabulary.digest,
            vocab_size=len(vocabulary),
            slots=spec.slots,
            context=spec.context,
            max_output=min(spec.max_output or spec.context, spec.context),
            features=tuple(sorted(features)),
            device="cpu",
            runtime=runtime_version(),
            kernel=f"llama.cpp {props.get('build_info', '')} {props.get('model_ftype', '')}".strip(),
            chat_template=template,
            bos=vocabulary.spell(vocabulary.bos),
            eos=vocabulary.spell(vocabulary.eos),
            control_tokens=vocabulary.control_texts,
            longest_token=max(map(len, vocabulary.pieces)),
            add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        )

    def capabilities(self) -> Capabilities:
        """See `Engine`."""
        return self._model().capabilities

    def _model(self) -> _Loaded:
        if self._loaded is None:
            raise EngineError("no model is loaded")
        return self._loaded

    def fits(self, request: EngineRequest) -> TooLong | NeedsCapacity | None:
        """See `Engine`."""
        loaded = self._model()
        if (long := too_long(request, loaded.spec.context)) is not None:
            return long
        return None if loaded.desk.free else NeedsCapacity("all slots are taken")

    def submit(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        """See `Engine`."""
        loaded = self._loaded
        if loaded is None:
            return one_event(Failed("unloaded", retryable=True, message="no model is loaded"))
        if (refused := refuse(request, loaded.capabilities) or _refuse(request, loaded)) is not None:
            return one_event(refused)
        try:
            ticket = loaded.desk.enter(request)
        except EngineError as error:
            return one_event(Failed("bad_request", retryable=False, message=str(error)))
        return self._run(request, ticket, loaded)

    async def _run(self, request: EngineRequest, ticket: Ticket, loaded: _Loaded) -> AsyncIterator[EngineEvent]:
        run = Run(request, ticket, loaded.vocabulary, loaded.tokenizer, self._meter)
        try:
            if await loaded.desk.seat(ticket):
                lane = await self._lane(request, loaded)
                lease = lane.take(request.tenant, run.prompt, share=loaded.spec.prefix_cache)
                async for event in run.events(lane.server.address, lease, loaded.desk, loaded.enforced):
                    yield event
            yield run.verdict()
        except OSError as error:
            self._dead = self._dead or self._loaded is loaded
            yield run.failed(EngineError(f"llama.cpp does not answer: {error}"))
        except EngineError as error:
            yield run.failed(error)
        finally:
            run.close()
            loaded.desk.leave(ticket)

    async def _lane(self, request: EngineRequest, loaded: _Loaded) -> _Lane:
        """The lane for a request; the plain one is started when it is needed first."""
        if request.top_logprobs is None and request.grammar is None:
            return loaded.main
        async with loaded.plain_lock:
            if loaded.plain is None:
                if self._loaded is not loaded:
                    raise EngineError("the model was unloaded")
                server = await LlamaServer.start(loaded.spec, loaded.path, drafting=False)
                loaded.plain = _Lane(server, loaded.spec.slots)
            return loaded.plain

    def cancel(self, request_id: str) -> bool:
        """See `Engine`."""
        return self._loaded is not None and self._loaded.desk.cancel(request_id)

    def stats(self) -> Stats:
        """See `Engine`. The cache is counted in tokens, over the slots of both lanes' common number."""
        loaded, meter, count = self._loaded, self._meter, self._meter.counters
        if loaded is None:
            return Stats(steps=count.steps)
        total = loaded.spec.slots * loaded.spec.context
        single = count.completion - count.accepted
        return Stats(
            waiting=loaded.desk.waiting,
            prefill=count.prefilling,
            decode=max(0, loaded.desk.running - count.prefilling),
            kv_total=total,
            kv_free=max(0, total - count.reserved),
            steps=count.steps,
            prompt_tokens=count.prompt,
            cached_tokens=count.cached,
            completion_tokens=count.completion,
            prefill_tps=meter.prefill_tps,
            itl_ms=dict(meter.itl_ms),
            draft=Draft(
                kind=loaded.spec.draft.kind,
                length=0 if loaded.spec.draft.kind == "none" else loaded.spec.draft.length,
                accepted=count.accepted,
                proposed=count.proposed,
                tokens_per_step=count.completion / single if single else 0.0,
            ),
        )

    def healthy(self) -> bool:
        """See `Engine`. A server that answers but makes no progress shows in `stats().steps`, not here."""
        return self._loaded is not None and not self._dead

    async def drain(self, timeout_s: float) -> bool:
        """See `Engine`."""
        return self._loaded is None or await self._loaded.desk.drained(timeout_s)

    async def unload(self) -> None:
        """See `Engine`."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        loaded.desk.stop_all("unloaded")
        async with loaded.plain_lock:
            lanes = {id(lane): lane for lane in (loaded.main, loaded.plain) if lane is not None}
            for lane in lanes.values():
                await lane.server.stop()


async def one_event(event: EngineEvent) -> AsyncIterator[EngineEvent]:
    """The whole life of a request that never began."""
    yield event


def _refuse(request: EngineRequest, loaded: _Loaded) -> Failed | None:
    """What llama.cpp in particular cannot do."""
    problem = None
    resumed = request.resume.ids if request.resume is not None else ()
    if request.min_tokens not in (0, 1, request.max_tokens):
        problem = "min_tokens: this engine knows 0, 1 and max_tokens"
    elif resumed and request.grammar is not None:
        problem = "resume: an answer that is held to a grammar cannot be gone on with"
    elif not loaded.vocabulary.whole(resumed):
        problem = "resume: the tokens end inside a character"
    return None if problem is None else Failed("bad_request", retryable=False, message=problem)


def _check_context(spec: EngineSpec, metadata: dict[str, Any]) -> None:
    trained = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if isinstance(trained, int) and spec.context > trained:
        raise ModelError(f"the model was trained for a context of {trained} tokens, not {spec.context}")


def _check_draft(path: Path, vocabulary: Vocabulary) -> None:
    """A draft model must have the main model's tokens, id by id: otherwise it proposes nonsense, or worse."""
    other = Vocabulary.from_metadata(read_metadata(path))
    if other.digest != vocabulary.digest:
        raise ModelError(f"the draft model {path.name} has another vocabulary than the model")


async def _self_test(address: Address, tokenizer: LlamaTokenizer) -> None:
    """One-chunk prefill must give the same next token as token by token: a non-causal kernel is never served."""
    ids = await tokenizer.encode(_SELF_TEST, special=False)
    whole = await _best(address, ids, reuse=False)
    grown: dict[int, float] = {}
    for size in range(1, len(ids) + 1):
        grown = await _best(address, ids[:size], reuse=size > 1)
    check_causal(whole, grown)


def check_causal(whole: dict[int, float], grown: dict[int, float]) -> None:
    """Compare logprobs by token id. Raises EngineError if the best token of one is unlike in the other."""
    best = max(whole, key=whole.__getitem__)
    if best not in grown or abs(whole[best] - grown[best]) > SELF_TEST_NATS:
        raise EngineError("self-test: a prompt evaluated at once and token by token gives different results")


async def _best(address: Address, prompt: list[int], *, reuse: bool) -> dict[int, float]:
    body = {"prompt": prompt, "n_predict": 1, "n_probs": 8, "temperature": 0, "id_slot": 0, "cache_prompt": reuse}
    try:
        answer = await call(address, "/completion", body)
        chosen = msgspec.convert(answer["completion_probabilities"][0], Probability)
    except (OSError, LookupError, msgspec.ValidationError) as error:
        raise EngineError(f"self-test: llama.cpp gave no probabilities ({error!r})") from error
    return {one.id: one.logprob for one in chosen.top_logprobs}
