"""The worker's shell: bus at one end, engine at the other, `shared.protocol` and `workers.core` in between.

A job's path: `_on_job` feeds the protocol, which says `Start` once, however often the job comes; a `JobRun`
(`workers/job.py`) then lives until the engine's terminal event, and the protocol frames what it says.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable

import msgspec
import structlog

from shared import subjects, wire
from shared.bus import NO_RESPONDERS, Bus, Delivery
from shared.errors import EvenflowError, ProtocolError
from shared.protocol import Abort, Answer, Orphaned, SendFrame, Start, WorkerEnd
from shared.pump import Pump
from shared.settings import WorkerSettings
from shared.tracing import HEADER, Tracing
from workers.announce import Announcer, announcement
from workers.core.lifecycle import Lifecycle
from workers.core.slots import SlotTable
from workers.engines.base import Capabilities, Engine, EngineSpec, Failed
from workers.job import Feed, JobRun
from workers.models import template_tokens
from workers.orphans import Orphans
from workers.spans import JobSpans

log = structlog.get_logger("node")

_DRAIN_S = 25.0
_LAST_WORDS_S = 2.0
_HARD_END_S = 8.0
_WATCH_S = 0.5


class EngineStalledError(EvenflowError):
    """The engine made no progress while it had work: this process cannot serve any more."""


class Node:
    """One engine on the bus."""

    def __init__(
        self,
        settings: WorkerSettings,
        spec: EngineSpec,
        engine: Engine,
        bus: Bus,
        *,
        tracing: Tracing | None = None,
        end_within: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self.settings = settings
        self.spec = spec
        self.wid = settings.name
        self.wep = secrets.token_hex(8)
        self.life = Lifecycle()
        self.slots: SlotTable[str] = SlotTable(settings.slots, settings.ahead)
        self.end = WorkerEnd(self.wid, self.wep)
        self.stopping = asyncio.Event()
        self._end_within = end_within
        self.engine = engine
        self.loaded: Capabilities | None = None
        self.template = (0, 0)
        """Tokens that the chat template makes of one empty message, and that each further one adds."""
        self._moved = asyncio.Event()
        self._bus = bus
        self._runs: dict[str, JobRun] = {}  # by name, until nothing of them is left
        self._streams: dict[tuple[str, int], JobRun] = {}  # those that the protocol still knows
        self._tracing = tracing or Tracing()
        self._traceparent: str | None = None  # of the job that is being taken in
        self._pump: Pump[object] = Pump(self.end, self._carry_out, flush=self.end.flush, flush_at=self.end.flush_at)
        self._announcer = Announcer(self.wid, self._bus, self._announcement)
        self._orphans = Orphans(self.wid, self.wep, bus)
        bus.on_disconnect = lambda: self._connection(self.end.disconnected)
        bus.on_reconnect = lambda: self._connection(self.end.reconnected)

    # ------------------------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Serve until `stopping` is set, then drain. Raises EngineError, ModelError or EngineStalledError."""
        await self._subscribe()
        async with asyncio.TaskGroup() as group:
            owned = [
                group.create_task(self._pump.run(), name="pump"),
                group.create_task(self._announcer.run(), name="announcer"),
                group.create_task(self._orphans.run(), name="orphans"),
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
                await self.engine.unload()

    async def _load(self) -> None:
        self.life.to("loading", "loading the model")
        self._announcer.changed()

        def progress(fraction: float, what: str) -> None:
            self.life.progress, self.life.reason = fraction, what
            self._announcer.changed()

        loaded = await self.engine.load(self.spec, progress)
        self.template = await template_tokens(loaded, self.engine.tokenizer)
        self.loaded = loaded
        self.slots.slots = self.loaded.slots
        self.life.to("ready")
        self._announcer.changed()
        log.info("worker_ready", worker=self.wid, model=self.spec.model, version=self.spec.version)

    async def _drain(self, watch: asyncio.Task[None]) -> None:
        """Take nothing new, finish what runs (at most 25 s), then end the rest as retryable and send that too."""
        self._end_within(_DRAIN_S + _HARD_END_S)
        self.life.to("draining", "stopping")
        self._announcer.changed()
        await self._quiet(_DRAIN_S)
        watch.cancel()  # an engine that is being unloaded is not healthy, and need not be
        await self.engine.unload()
        await self._quiet(_LAST_WORDS_S)
        await self._announcer.announce()

    async def _quiet(self, within_s: float, *, of_jobs: bool = True) -> None:
        """Until no job runs and every terminal was acknowledged, at most `within_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (of_jobs and self._runs) or self.end.unacked_count():
                    self._moved.clear()
                    # What is given up on a dead bus, unacknowledged, moves nobody: look again.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_WATCH_S):
                            await self._moved.wait()

    async def _watch(self) -> None:
        """Notice an engine that does not move or is dead; the supervisor restarts the process."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_S)
            stats = self.engine.stats()
            busy = any(run.in_engine for run in self._runs.values())
            if self.life.observe(loop.time(), stats.steps, busy) or not self.engine.healthy():
                await self._give_up("the engine made no progress")

    async def _give_up(self, why: str) -> None:
        """Tell every gateway that its requests failed, and end the process."""
        self._end_within(_HARD_END_S)
        log.error("engine_stalled", worker=self.wid, running=len(self._runs))
        self.life.to("draining", why)
        for run in self._runs.values():
            run.feed.event(Failed("engine_fault", retryable=True, message=why))
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
            (subjects.ghb("*"), self._on_heartbeat),
            (f"{self._bus.inbox}.f.*", self._on_bounce),
        ):
            await self._bus.subscribe(subject, handler)
        await self._orphans.open()
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
        await self._fed(lambda now: self.end.job(now, gid, job, delivery.reply))

    async def _on_credit(self, delivery: Delivery) -> None:
        credit = _CREDIT.decode(delivery.data)
        await self._fed(lambda now: self.end.credit(now, subjects.last(delivery.subject), credit))
        self._moved.set()

    async def _on_cancel(self, delivery: Delivery) -> None:
        cancel = _CANCEL.decode(delivery.data)
        await self._fed(lambda now: self.end.cancel(now, subjects.last(delivery.subject), cancel))

    async def _on_ctl(self, delivery: Delivery) -> None:
        command: wire.Ctl = _CTL.decode(delivery.data)
        if command.what == "drain":
            self.life.to("draining", f"asked by {subjects.last(delivery.subject)}")
        elif command.what == "undrain":
            self.life.to("ready")
        else:
            raise ProtocolError(f"control command {command.what!r} is not served")
        self._announcer.changed()

    async def _on_heartbeat(self, delivery: Delivery) -> None:
        """A gateway lives; a new process of it has none of the streams of the old one."""
        beat: wire.Ghb = _GHB.decode(delivery.data)
        await self._fed(lambda now: self.end.announced(now, subjects.last(delivery.subject), beat.gep))

    async def _on_bounce(self, delivery: Delivery) -> None:
        """A frame came back because its gateway does not listen."""
        if delivery.status == NO_RESPONDERS:
            await self._fed(lambda now: self.end.no_responders(now, subjects.last(delivery.subject)))

    async def _fed(self, feed: Callable[[float], None]) -> None:
        """Feed the protocol and carry out in this turn what that caused, also where the input was partly wrong."""
        try:
            feed(_now())
        finally:
            for instruction in self.end.instructions():
                await self._carry_out(instruction)
            self._pump.poke()

    def _connection(self, feed: Callable[[float], None]) -> None:
        feed(_now())
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
                run = JobRun(job, self, Feed(self.end, gid, sid, self._pump.poke), spans)
                self._runs[run.name] = self._streams[gid, sid] = run
                run.start(lambda run: self._over((gid, sid), run))
            case Abort(gid=gid, sid=sid, reason=reason, final=final):
                aborted = self._streams.get((gid, sid))
                if aborted is not None:
                    if final:  # the protocol has forgotten the stream, and may meet its number again
                        del self._streams[gid, sid]
                        aborted.feed.close()
                    aborted.abort(reason)
            case Orphaned(gid=gid, aid=aid, generated=generated, acked=acked):
                log.warning("stream_orphaned", gateway=gid, aid=aid, generated=generated, acked=acked)
                await self._orphans.report(aid, generated, acked)

    # ------------------------------------------------------------------------------------------------- for the jobs

    def let_in(self) -> None:
        """Start everyone whose turn has come."""
        for name in self.slots.startable():
            run = self._runs.get(name)
            if run is None:
                self.slots.release(name)
                continue
            self.slots.start(name)
            run.turn.set()

    def changed(self) -> None:
        """Something that gateways decide by is different now."""
        self._announcer.changed()

    def _over(self, stream: tuple[str, int], run: JobRun) -> None:
        self._runs.pop(run.name, None)
        if self._streams.get(stream) is run:
            del self._streams[stream]
        self.slots.release(run.name)
        self._moved.set()
        self.let_in()
        self.changed()
        self._pump.poke()

    def _announcement(self, n: int) -> wire.Ann:
        stats = self.engine.stats() if self.loaded is not None else None
        return announcement(self, n, self.spec, self.loaded, stats)


_JOB = wire.decoder(wire.Job)
_CREDIT = wire.decoder(wire.Credit)
_CANCEL = wire.decoder(wire.Cancel)
_CTL = wire.decoder(wire.Ctl)
_GHB = wire.decoder(wire.Ghb)


def _now() -> float:
    return asyncio.get_running_loop().time()
