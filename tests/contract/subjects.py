"""The engines under the contract, each loaded once, and what every test does with them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count

from shared.wire import Job, Sampling, TokenLogprob
from workers.engines.base import (
    Delta,
    DraftSpec,
    Engine,
    EngineEvent,
    EngineRequest,
    EngineSpec,
    Failed,
    Finished,
)
from workers.engines.llamacpp import LlamaCppEngine
from workers.engines.null import NullEngine
from workers.models import embedded_path, encode_input

GREEDY = Sampling(temperature=0.0)
NAMES = ("null-hash", "null-script", "llama-none", "llama-ngram", "llama-model")
LLAMA = tuple(name for name in NAMES if name.startswith("llama"))
_ids = count()


def spec_of(name: str) -> EngineSpec:
    family, kind = name.split("-")
    if family == "null":
        # Paced, so that "in the middle of an answer" is a real state; script runs as fast as it is read.
        options: dict[str, str | int | float | bool] = {
            "mode": kind,
            "rate": 400.0,
            "tokens": 1500,
            "paced": kind == "hash",
        }
        return EngineSpec(model="null", version="1", draft=DraftSpec(kind="none"), options=options)
    return EngineSpec(model="smollm2", version="1", context=512, draft=DraftSpec(kind=kind, path=str(embedded_path())))


def create(name: str) -> Engine:
    return NullEngine() if name.startswith("null") else LlamaCppEngine()


@dataclass
class Subject:
    name: str
    engine: Engine

    @property
    def llama(self) -> bool:
        return self.name.startswith("llama")

    async def chat(self, text: str) -> tuple[int, ...]:
        job = Job(
            gep="g", sid=1, aid="a", tenant="t", model="m", version="1", kind="chat",
            input=[{"role": "user", "content": text}], deadline_ms=1000,
        )  # fmt: skip
        return tuple(await encode_input(job, self.engine.capabilities(), self.engine.tokenizer))

    async def ask(self, text: str, n: int, *, full: bool = False, **more: object) -> EngineRequest:
        """A chat turn. `full`: exactly `n` tokens, whatever the model would like."""
        fields: dict[str, object] = {"sampling": GREEDY, "tenant": "t", **more}
        prompt = fields.pop("prompt", None) or await self.chat(text)
        return EngineRequest(
            id=f"r{next(_ids)}", prompt=prompt, max_tokens=n, min_tokens=n if full else 0, **fields
        )  # fmt: skip

    async def run(self, text: str, n: int, **more: object) -> "Answer":
        return await collect(self.engine, await self.ask(text, n, **more))


@dataclass
class Answer:
    request: EngineRequest
    events: list[EngineEvent] = field(default_factory=list)

    @property
    def end(self) -> Finished | Failed:
        return self.events[-1]

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(number for delta in self.deltas for number in delta.ids)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [one for delta in self.deltas for one in delta.logprobs or ()]

    def check(self) -> None:
        """What holds for every answer of every engine."""
        kinds = [isinstance(event, Finished | Failed) for event in self.events]
        assert kinds.count(True) == 1
        assert kinds[-1]
        usage, end = self.end.usage, self.end
        if isinstance(end, Finished):
            assert usage.prompt == len(self.request.prompt)
        assert 0 <= usage.cached <= usage.prompt
        assert 0 <= usage.accepted <= usage.proposed
        resumed = len(self.request.resume.ids) if self.request.resume else 0
        unknown = usage.completion - resumed - len(self.ids)
        if isinstance(end, Finished) and end.reason == "length":
            assert usage.completion == self.request.max_tokens
            # A cut inside a character: its ids stay unknown, at most three of them.
            assert 0 <= unknown <= 3
        elif not (isinstance(end, Failed) and usage.completion == 0):
            assert unknown == 0
        assert "\ufffd" not in self.text
        assert all(delta.text.encode() is not None for delta in self.deltas)


async def collect(engine: Engine, request: EngineRequest) -> Answer:
    answer = Answer(request)
    async for event in engine.submit(request):
        answer.events.append(event)
    answer.check()
    return answer


async def until(stream: AsyncIterator[EngineEvent], kind: type) -> list[EngineEvent]:
    """Read a stream up to the first event of a kind."""
    seen: list[EngineEvent] = []
    async for event in stream:
        seen.append(event)
        if isinstance(event, kind):
            return seen
    raise AssertionError(f"no {kind.__name__} in {seen}")


async def rest(stream: AsyncIterator[EngineEvent]) -> list[EngineEvent]:
    return [event async for event in stream]


async def settled(engine: Engine) -> None:
    """Nothing is left running, in the engine's own eyes."""
    assert await engine.drain(10)
    stats = engine.stats()
    assert (stats.waiting, stats.prefill, stats.decode) == (0, 0, 0)
