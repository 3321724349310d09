"""One job in this worker: admitted, tokenised, answered, in its slot, generating, over.

It speaks to its gateway through a `Feed`, which falls silent once the protocol has let go of the stream: a gateway that
starts anew counts its streams from one again, and what an old job still says must not land in a new one.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from shared import wire
from shared.errors import InvalidRequestError
from shared.protocol import WorkerEnd
from workers.core.admission import RefusedError, engine_request, refused, too_large
from workers.core.lifecycle import Lifecycle
from workers.core.slots import SlotTable
from workers.engines.base import (
    Capabilities,
    Delta,
    Engine,
    EngineEvent,
    EngineRequest,
    Failed,
    Finished,
    Prefilled,
    Started,
)
from workers.engines.checks import broken_promise
from workers.models import PromptTooLongError, encode_input
from workers.spans import JobSpans

log = structlog.get_logger("job")


class Feed:
    """What one job says, to the protocol and from there to its gateway."""

    def __init__(self, end: WorkerEnd, gid: str, sid: int, said: Callable[[], None]) -> None:
        self._end: WorkerEnd | None = end
        self._stream = (gid, sid)
        self._said = said

    def close(self) -> None:
        """The protocol has let go of the stream: from now on nothing is passed on."""
        self._end = None

    def answer(self, reply: wire.Accept | wire.Nack) -> None:
        """Accept or refuse the job; counts once."""
        if self._end is not None:
            self._end.answer(_now(), *self._stream, reply)
            self._said()

    def event(self, event: EngineEvent, timings: wire.Timings | None = None) -> None:
        """What the engine reports; `timings` replace those of a Finished."""
        if self._end is None:
            return
        end, now, (gid, sid) = self._end, _now(), self._stream
        match event:
            case Delta(text, ids, logprobs):
                end.text(now, gid, sid, text, ids, logprobs)
            case Prefilled(done, total, cached):
                end.prefill(now, gid, sid, done, total, cached)
            case Finished(reason, usage, own):
                end.end(now, gid, sid, reason, usage, timings or own)
            case Failed(code=code, retryable=retryable, message=message, usage=usage):
                end.fail(now, gid, sid, code, message, retryable=retryable, usage=usage)
            case Started():
                return
        self._said()


class Floor(Protocol):
    """What the jobs of a worker share."""

    wep: str
    life: Lifecycle
    slots: SlotTable[str]
    engine: Engine
    loaded: Capabilities | None

    def let_in(self) -> None:
        """Start everyone whose turn has come."""
        ...

    def changed(self) -> None:
        """Something that gateways decide by is different now."""
        ...


class JobRun:
    """The life of one job. `name` is unique also when a gateway epoch counts its streams from one again."""

    def __init__(self, job: wire.Job, floor: Floor, feed: Feed, spans: JobSpans) -> None:
        self.name = f"{job.gep}.{job.sid}"
        self.turn = asyncio.Event()
        self.in_engine = False
        self._begun = False
        self.feed = feed
        self._job = job
        self._floor = floor
        self._spans = spans
        self._aborted = ""
        self._taken_at = _now()
        self._prompt_tokens = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, over: Callable[["JobRun"], None]) -> None:
        """Run; `over` is called when nothing of it is left."""
        self._task = asyncio.get_running_loop().create_task(self._live(over), name=f"job {self._job.aid}")

    def abort(self, reason: str) -> None:
        """Stop, wherever it is: the engine's own terminal still comes if the engine has it."""
        self._aborted = self._aborted or reason
        if self.in_engine:
            self._floor.engine.cancel(self.name)
        elif self._begun and self._task is not None:  # a task cancelled before its first step would never clean up
            self._task.cancel()

    def _go_on(self) -> None:
        if self._aborted:
            raise asyncio.CancelledError

    async def _live(self, over: Callable[["JobRun"], None]) -> None:
        self._begun = True
        self._spans.bind_log()
        try:
            self._go_on()  # unless the cancel came together with the job
            request = await self._take()
            self._floor.let_in()
            await self.turn.wait()
            self._go_on()  # unless it came together with the turn
            await self._generate(request)
        except RefusedError as refusal:
            self._spans.refused(refusal.nack.code)
            self.feed.answer(refusal.nack)
        except asyncio.CancelledError:
            self._cancelled()
        except Exception:
            log.exception("job_failed", aid=self._job.aid)
            self._spans.fault("internal")
            # The refusal counts only if the job was not answered yet, the failure only if it was.
            self.feed.answer(refused(self._floor.wep, self._job.sid, "internal", "the worker failed").nack)
            usage = wire.Usage(prompt=self._prompt_tokens)
            self.feed.event(Failed("engine_fault", retryable=True, message="the worker failed", usage=usage))
        finally:
            self._spans.end()
            over(self)

    async def _take(self) -> EngineRequest:
        """Admit, tokenise and answer the gateway. Raises RefusedError."""
        job, floor, loaded = self._job, self._floor, self._floor.loaded
        if floor.life.state != "ready" or loaded is None:
            code: wire.NackCode = "draining" if floor.life.state == "draining" else "busy"
            raise refused(floor.wep, job.sid, code, f"the worker is {floor.life.state}")
        if (job.model, job.version) != (loaded.model, loaded.version):
            raise refused(floor.wep, job.sid, "unknown_model", f"this worker serves {loaded.model}")
        ahead = floor.slots.admit(self.name)
        if ahead is None:
            raise refused(floor.wep, job.sid, "busy", "every slot is taken")
        floor.changed()
        try:
            prompt = await encode_input(job, loaded, floor.engine.tokenizer)
        except InvalidRequestError as error:
            raise refused(
                floor.wep, job.sid, "bad_request", error.message, param=error.param or "", error_code=error.code or ""
            ) from error
        except PromptTooLongError as error:
            raise too_large(floor.wep, job, error.at_least, loaded.context, error_code="at_least") from error
        except RecursionError as error:
            raise refused(floor.wep, job.sid, "bad_request", "the input is nested too deeply") from error
        left_s = job.deadline_ms / 1000 - (_now() - self._taken_at)
        if job.grammar is None:
            request = engine_request(floor.wep, job, prompt, loaded, left_s)
        else:  # a schema takes milliseconds to check
            request = await asyncio.to_thread(engine_request, floor.wep, job, prompt, loaded, left_s)
        self._prompt_tokens = len(prompt)
        accept = wire.Accept(
            wep=floor.wep, sid=job.sid, prompt_tokens=len(prompt), ahead=ahead, max_tokens=request.max_tokens
        )
        self.feed.answer(accept)
        return request

    async def _generate(self, request: EngineRequest) -> None:
        floor, feed, spans, first = self._floor, self.feed, self._spans, True
        # With stop strings the client asked for less than the whole: nothing is promised of the rest.
        promised = request.grammar if not request.stop else None
        texts: list[str] = []
        spans.prefilling(floor.loaded)
        self.in_engine = True
        queue_ms = (_now() - self._taken_at) * 1000
        async for event in floor.engine.submit(request):
            timings = None
            if isinstance(event, Delta):
                if promised is not None:
                    texts.append(event.text)
                if first:
                    first = False
                    spans.first_token()
                    floor.slots.decoding(self.name)
                    floor.changed()
            elif isinstance(event, Finished):
                if promised is not None and event.reason == "stop":
                    why = await asyncio.to_thread(broken_promise, promised, "".join(texts))
                    if why is not None:
                        event = Failed("grammar_broken", retryable=False, message=why, usage=event.usage)  # noqa: PLW2901
                        spans.failed(event.code, event.usage)
                        feed.event(event)
                        continue
                own = event.timings
                timings = wire.Timings(queue_ms=queue_ms, prefill_ms=own.prefill_ms, decode_ms=own.decode_ms)
                spans.finished(event.reason, event.usage, self._aborted)
            elif isinstance(event, Failed):
                spans.failed(event.code, event.usage)
            feed.event(event, timings)

    def _cancelled(self) -> None:
        self._spans.cancelled(self._aborted)
        self.feed.event(Finished("cancelled", wire.Usage(prompt=self._prompt_tokens), wire.Timings()))


def _now() -> float:
    return asyncio.get_running_loop().time()
