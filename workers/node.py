"""The worker's shell: bus at one end, engine at the other, `shared.protocol` and `workers.core` in between.

A job's path, top to bottom: `_on_job` feeds the protocol; `Start` makes `_serve`, which admits, tokenises, answers the
gateway, waits for its slot, and then passes the engine's events to the protocol until the terminal one.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable

import msgspec
import structlog

from shared import subjects, wire
from shared.bus import NO_RESPONDERS, Bus, Delivery
from shared.errors import EvenflowError, InvalidRequestError, ProtocolError
from shared.protocol import Abort, Answer, Orphaned, SendFrame, Start, WorkerEnd
from shared.pump import Pump
from shared.settings import WorkerSettings
from shared.tracing import HEADER, Tracing
from workers.announce import Announcer, announcement
from workers.core.admission import RefusedError, engine_request, refused
from workers.core.lifecycle import Lifecycle
from workers.core.slots import SlotTable
from workers.engines.base import (
    Capabilities,
    Delta,
    Engine,
    EngineRequest,
    EngineSpec,
    Failed,
    Finished,
    Prefilled,
    Started,
)
from workers.models import encode_input
from workers.spans import JobSpans

log = structlog.get_logger("node")

Key = tuple[str, int]

_DRAIN_S = 25.0
_LAST_WORDS_S = 2.0
_WATCH_S = 0.5


class EngineStalledError(EvenflowError):
    """The engine made no progress while it had work: this process cannot serve any more."""


class Running(msgspec.Struct, eq=False):
    """One job in this worker."""

    job: wire.Job
    spans: JobSpans
    task: asyncio.Task[None] | None = None
    turn: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    engine_id: str = ""  # set while the engine has it
    aborted: str = ""
    taken_at: float = 0.0


class Node:
    """One engine on the bus."""

    def __init__(
        self, settings: WorkerSettings, spec: EngineSpec, engine: Engine, bus: Bus, tracing: Tracing | None = None
    ) -> None:
        self.settings = settings
        self.spec = spec
        self.wid = settings.name
        self.wep = secrets.token_hex(8)
        self.life = Lifecycle()
        self.slots: SlotTable[Key] = SlotTable(settings.slots, settings.ahead)
        self.end = WorkerEnd(self.wid, self.wep)
        self.stopping = asyncio.Event()
        self._moved = asyncio.Event()
        self._engine = engine
        self._bus = bus
        self._capabilities: Capabilities | None = None
        self._running: dict[Key, Running] = {}
        self._tracing = tracing or Tracing()
        self._traceparent: str | None = None  # of the job that is being taken in
        self._pump: Pump[object] = Pump(self.end, self._carry_out, flush=self.end.flush, flush_at=self.end.flush_at)
        self._announcer = Announcer(self.wid, self._bus, self._announcement)
        bus.on_disconnect = lambda: self._fed(self.end.disconnected)
        bus.on_reconnect = lambda: self._fed(self.end.reconnected)

    # ------------------------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Serve until `stopping` is set, then drain. Raises EngineError, ModelError or EngineStalledError."""
        await self._subscribe()
        async with asyncio.TaskGroup() as group:
            owned = [
                group.create_task(self._pump.run(), name="pump"),
                group.create_task(self._announcer.run(), name="announcer"),
            ]
            try:
                await self._load()
                watch = group.create_task(self._watch(), name="watch")
                owned.append(watch)
                await self.stopping.wait()
                await self._drain(watch)
            finally:
                for task in owned:
                    task.cancel()
                await self._engine.unload()

    async def _load(self) -> None:
        self.life.to("loading", "loading the model")
        self._announcer.changed()

        def progress(fraction: float, what: str) -> None:
            self.life.progress, self.life.reason = fraction, what
            self._announcer.changed()

        self._capabilities = await self._engine.load(self.spec, progress)
        self.slots.slots = self._capabilities.slots
        self.life.to("ready")
        self._announcer.changed()
        log.info("worker_ready", worker=self.wid, model=self.spec.model, version=self.spec.version)

    async def _drain(self, watch: asyncio.Task[None]) -> None:
        """Take nothing new, finish what runs (at most 25 s), then end the rest as retryable and send that too."""
        self.life.to("draining", "stopping")
        self._announcer.changed()
        await self._quiet(_DRAIN_S)
        watch.cancel()  # an engine that is being unloaded is not healthy, and need not be
        await self._engine.unload()
        await self._quiet(_LAST_WORDS_S)
        await self._announcer.announce()

    async def _quiet(self, within_s: float, *, of_jobs: bool = True) -> None:
        """Until no job runs and every terminal was acknowledged, at most `within_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (of_jobs and self._running) or self.end.open_count():
                    self._moved.clear()
                    await self._moved.wait()

    async def _watch(self) -> None:
        """Notice an engine that does not move or is dead; the supervisor restarts the process."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_S)
            stats = self._engine.stats()
            busy = any(running.engine_id for running in self._running.values())
            if self.life.observe(loop.time(), stats.steps, busy) or not self._engine.healthy():
                await self._give_up("the engine made no progress")

    async def _give_up(self, why: str) -> None:
        """Tell every gateway that its requests failed, and end the process."""
        log.error("engine_stalled", worker=self.wid, running=len(self._running))
        self.life.to("draining", why)
        for gid, sid in list(self._running):
            self.end.fail(_now(), gid, sid, "engine_fault", why, retryable=True, usage=wire.Usage())
        self._pump.poke()
        await self._announcer.announce()
        await self._quiet(_LAST_WORDS_S, of_jobs=False)
        raise EngineStalledError(why)

    # --------------------------------------------------------------------------------------------------- from the bus

    async def _subscribe(self) -> None:
        for subject, handler in (
            (subjects.job(self.wid, "*"), self._on_job),
            (subjects.credit(self.wid, "*"), self._on_credit),
            (subjects.cancel(self.wid, "*"), self._on_cancel),
            (subjects.ctl(self.wid, "*"), self._on_ctl),
            (f"{self._bus.inbox}.f.*", self._on_bounce),
        ):
            await self._bus.subscribe(subject, handler)
        await self._bus.barrier()

    async def _on_job(self, delivery: Delivery) -> None:
        gid = subjects.last(delivery.subject)
        try:
            job: wire.Job = _JOB.decode(delivery.data)
        except msgspec.DecodeError as error:
            # Nothing to answer by: without a sid there is no reply that the gateway could match.
            raise ProtocolError(f"job from {gid}: {error}") from error
        if not subjects.is_answer(delivery.reply, self.wid, gid):
            # An answer sent there would reach somebody else, in this worker's name.
            raise ProtocolError(f"job from {gid} wants its answer on {delivery.reply!r}")
        self._traceparent = (delivery.headers or {}).get(HEADER)
        self.end.job(_now(), gid, job, delivery.reply)
        await self._obey()

    async def _on_credit(self, delivery: Delivery) -> None:
        self.end.credit(_now(), subjects.last(delivery.subject), _CREDIT.decode(delivery.data))
        self._moved.set()
        await self._obey()

    async def _on_cancel(self, delivery: Delivery) -> None:
        self.end.cancel(_now(), subjects.last(delivery.subject), _CANCEL.decode(delivery.data))
        await self._obey()

    async def _on_ctl(self, delivery: Delivery) -> None:
        command: wire.Ctl = _CTL.decode(delivery.data)
        if command.what == "drain":
            self.life.to("draining", f"asked by {subjects.last(delivery.subject)}")
        elif command.what == "undrain":
            self.life.to("ready")
        else:
            raise ProtocolError(f"control command {command.what!r} is not served")
        self._announcer.changed()

    async def _on_bounce(self, delivery: Delivery) -> None:
        """A frame came back because its gateway does not listen."""
        if delivery.status == NO_RESPONDERS:
            self._fed(lambda now: self.end.no_responders(now, subjects.last(delivery.subject)))

    def _fed(self, feed: Callable[[float], None]) -> None:
        feed(_now())
        self._pump.poke()

    async def _obey(self) -> None:
        """Carry out what an input caused, in this turn already."""
        for instruction in self.end.instructions():
            await self._carry_out(instruction)
        self._pump.poke()

    async def _carry_out(self, instruction: object) -> None:
        match instruction:
            case SendFrame(gid=gid, frame=frame):
                await self._bus.publish(
                    subjects.frames(gid, self.wid), wire.encode(frame), reply=f"{self._bus.inbox}.f.{gid}"
                )
            case Answer(reply_to=reply_to, reply=reply):
                await self._bus.publish(str(reply_to), wire.encode(reply))
            case Start(gid=gid, sid=sid, job=job):
                spans = JobSpans(self._tracing, self._traceparent, job, self.wid)
                running = Running(job, spans, taken_at=_now())
                self._running[gid, sid] = running
                running.task = asyncio.get_running_loop().create_task(self._serve((gid, sid), running))
            case Abort(gid=gid, sid=sid, reason=reason):
                self._abort((gid, sid), reason)
            case Orphaned(gid=gid, aid=aid, generated=generated, acked=acked):
                log.warning("stream_orphaned", gateway=gid, aid=aid, generated=generated, acked=acked)

    def _abort(self, key: Key, reason: str) -> None:
        running = self._running.get(key)
        if running is None:
            return
        running.aborted = reason
        if running.engine_id:
            self._engine.cancel(running.engine_id)
        elif running.task is not None:
            running.task.cancel()

    # ------------------------------------------------------------------------------------------------------ one job

    async def _serve(self, key: Key, running: Running) -> None:
        gid, sid = key
        running.spans.bind_log()
        prompt_tokens = 0
        try:
            request = await self._take(key, running)
            prompt_tokens = len(request.prompt)
            await self._await_turn(running)
            if not running.aborted:
                await self._generate(key, running, request)
            else:  # the cancel came together with the turn
                running.spans.cancelled(running.aborted)
                self.end.end(_now(), gid, sid, "cancelled", wire.Usage(prompt=prompt_tokens), wire.Timings())
        except RefusedError as refusal:
            running.spans.refused(refusal.nack.code)
            self.end.answer(_now(), gid, sid, refusal.nack)
        except asyncio.CancelledError:
            running.spans.cancelled(running.aborted)
            self.end.end(_now(), gid, sid, "cancelled", wire.Usage(prompt=prompt_tokens), wire.Timings())
        except Exception:
            log.exception("job_failed", aid=running.job.aid)
            running.spans.fault("internal")
            nack = wire.Nack(wep=self.wep, sid=sid, code="internal", message="the worker could not take this request")
            self.end.answer(_now(), gid, sid, nack)  # counts only if nothing was answered yet
            usage = wire.Usage(prompt=prompt_tokens)
            self.end.fail(_now(), gid, sid, "engine_fault", "the worker failed", retryable=True, usage=usage)
        finally:
            running.spans.end()
            self._running.pop(key, None)
            self.slots.release(key)
            self._moved.set()
            self._let_in()
            self._announcer.changed()
            self._pump.poke()

    async def _take(self, key: Key, running: Running) -> EngineRequest:
        """Admit, tokenise and answer the gateway. Raises RefusedError."""
        job, sid, loaded = running.job, running.job.sid, self._capabilities
        if self.life.state != "ready" or loaded is None:
            code: wire.NackCode = "draining" if self.life.state == "draining" else "busy"
            raise refused(self.wep, sid, code, f"the worker is {self.life.state}")
        if (job.model, job.version) != (loaded.model, loaded.version):
            raise refused(self.wep, sid, "unknown_model", f"this worker serves {loaded.model}")
        ahead = self.slots.admit(key)
        if ahead is None:
            raise refused(self.wep, sid, "busy", "every slot is taken")
        self._announcer.changed()
        try:
            prompt = await encode_input(job, loaded, self._engine.tokenizer)
        except InvalidRequestError as error:
            raise refused(
                self.wep, sid, "bad_request", error.message, param=error.param or "", error_code=error.code or ""
            ) from error
        left_s = job.deadline_ms / 1000 - (_now() - running.taken_at)
        request = engine_request(self.wep, job, prompt, loaded, left_s)
        accept = wire.Accept(
            wep=self.wep, sid=sid, prompt_tokens=len(prompt), ahead=ahead, max_tokens=request.max_tokens
        )
        self.end.answer(_now(), key[0], sid, accept)
        self._pump.poke()
        return request

    async def _await_turn(self, running: Running) -> None:
        self._let_in()
        await running.turn.wait()

    def _let_in(self) -> None:
        for key in self.slots.startable():
            running = self._running.get(key)
            if running is None:
                self.slots.release(key)
                continue
            self.slots.start(key)
            running.turn.set()

    async def _generate(self, key: Key, running: Running, request: EngineRequest) -> None:
        gid, sid = key
        end, first, spans = self.end, True, running.spans
        spans.prefilling(self._capabilities)
        running.engine_id = request.id
        queued_ms = (_now() - running.taken_at) * 1000
        async for event in self._engine.submit(request):
            now = _now()
            match event:
                case Delta(text, ids, logprobs):
                    if first:
                        first = False
                        spans.first_token()
                        self.slots.decoding(key)
                        self._announcer.changed()
                    end.text(now, gid, sid, text, ids, logprobs)
                case Prefilled(done, total, cached):
                    end.prefill(now, gid, sid, done, total, cached)
                case Finished(reason, usage, timings):
                    timings = wire.Timings(
                        queue_ms=queued_ms, prefill_ms=timings.prefill_ms, decode_ms=timings.decode_ms
                    )
                    spans.finished(reason, usage, running.aborted)
                    end.end(now, gid, sid, reason, usage, timings)
                case Failed(code=code, retryable=retryable, message=message, usage=usage):
                    spans.failed(code, usage)
                    end.fail(now, gid, sid, code, message, retryable=retryable, usage=usage)
                case Started():
                    continue
            self._pump.poke()

    def _announcement(self, n: int) -> wire.Ann:
        stats = self._engine.stats() if self._capabilities is not None else None
        return announcement(self, n, self.spec, self._capabilities, stats)


_JOB = wire.decoder(wire.Job)
_CREDIT = wire.decoder(wire.Credit)
_CANCEL = wire.decoder(wire.Cancel)
_CTL = wire.decoder(wire.Ctl)


def _now() -> float:
    return asyncio.get_running_loop().time()
