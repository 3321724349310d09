"""The seam: what every engine does, and nothing more.

An engine owns its library's calls, one dedicated thread (or the library's own), the sampler and the mapping of results.
The worker owns the bus, admission, deadlines, chat templates and tokenising. `docs/engines.md` lists the contract that
`tests/contract` checks on every engine.
"""

from collections.abc import AsyncIterator, Callable
from typing import Literal, Protocol

import msgspec

from shared.wire import Draft, FinishReason, Grammar, Resume, Sampling, Timings, TokenLogprob, Usage


class DraftSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to speculate: n-grams of the context (`size` to look up, `length` to propose) or a draft model's file."""

    kind: Literal["none", "ngram", "model"] = "ngram"
    length: int = 5
    size: int = 3
    path: str = ""


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to load. `context` is in tokens per slot; `threads` 0 means all physical cores but one, at least one."""

    model: str
    version: str
    path: str = ""
    sha256: str = ""
    slots: int = 4
    context: int = 2048
    max_output: int = 0
    threads: int = 0
    batch: int = 64
    prefix_cache: bool = True
    draft: DraftSpec = DraftSpec()
    options: dict[str, str | int | float | bool] = {}


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded. `digest` is the model file's sha256, `vocab_hash` that of its token list."""

    model: str
    version: str
    digest: str
    vocab_hash: str
    vocab_size: int
    slots: int
    context: int
    max_output: int
    features: tuple[str, ...]
    device: str
    runtime: str
    kernel: str
    chat_template: str
    bos: str
    eos: str
    control_tokens: tuple[str, ...]
    longest_token: int = 0
    add_bos: bool = False


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One generation. `deadline` is a duration in seconds from submission; `top_logprobs` None means no logprobs."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    sampling: Sampling = Sampling()
    seed: int | None = None
    top_logprobs: int | None = None
    grammar: Grammar | None = None
    deadline: float | None = None
    tenant: str = ""
    resume: Resume | None = None


class Started(msgspec.Struct, frozen=True):
    """The request has a slot."""


class Prefilled(msgspec.Struct, frozen=True):
    """`done` of `total` prompt tokens are evaluated; `cached` of them came from the prefix cache."""

    done: int
    total: int
    cached: int


class Delta(msgspec.Struct, frozen=True):
    """A piece of output. Texts joined are exact; ids joined are what `Usage.completion` counts."""

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


class Finished(msgspec.Struct, frozen=True):
    """Terminal: the request ended well."""

    reason: FinishReason
    usage: Usage
    timings: Timings


class Failed(msgspec.Struct, frozen=True):
    """Terminal: it did not. `code`: too_large, bad_request, engine_fault, unloaded, deadline."""

    code: str
    retryable: bool
    message: str
    usage: Usage = Usage()


EngineEvent = Started | Prefilled | Delta | Finished | Failed


class TooLong(msgspec.Struct, frozen=True):
    """The request can never fit: prompt, prompt + max_tokens and the context, in tokens."""

    prompt_tokens: int
    max_tokens: int
    context: int


class NeedsCapacity(msgspec.Struct, frozen=True):
    """The request would fit, but not now."""

    reason: str


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `steps` only grows while the engine makes progress: that is what health watches."""

    waiting: int = 0
    prefill: int = 0
    decode: int = 0
    kv_total: int = 0
    kv_free: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefill_tps: float = 0.0
    itl_ms: dict[int, float] = {}
    draft: Draft = Draft()


class Tokenizer(Protocol):
    """Text to token ids and back, by the loaded model's own vocabulary."""

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text`. With `special` false, control tokens spelled out in it stay ordinary text."""
        ...

    async def decode(self, ids: tuple[int, ...]) -> str:
        """Text of `ids`, control tokens included."""
        ...


Progress = Callable[[float, str], None]


class Engine(Protocol):
    """One loaded model. All methods are called from the worker's event loop; none of them blocks it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The loaded model's tokenizer."""
        ...

    async def load(self, spec: EngineSpec, progress: Progress) -> Capabilities:
        """Load and warm up; calls `progress(fraction, what)`. Raises EngineError, ModelError."""
        ...

    def capabilities(self) -> Capabilities:
        """What `load` returned. Raises EngineError before that."""
        ...

    def fits(self, request: EngineRequest) -> TooLong | NeedsCapacity | None:
        """None if `request` can start now. Pure: changes nothing."""
        ...

    def submit(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        """Run it. Yields exactly one terminal event, last, always; never raises for anything the request contains."""
        ...

    def cancel(self, request_id: str) -> bool:
        """Stop a request wherever it is. Idempotent; False if it is not known or has ended."""
        ...

    def stats(self) -> Stats:
        """Counters and what runs now."""
        ...

    def healthy(self) -> bool:
        """False once the engine cannot serve any more (its thread or process died)."""
        ...

    async def drain(self, timeout_s: float) -> bool:
        """Wait until nothing runs, at most `timeout_s` seconds; True if nothing does."""
        ...

    async def unload(self) -> None:
        """End every request with a retryable failure and free the memory. `load` may follow."""
        ...
