"""One gateway and some workers over a simulated network, on a clock that jumps.

Order holds within one subject from one sender, as NATS promises; between subjects it does not. Any message may be lost,
late or doubled (a double may come after newer ones). Processes can be killed, restarted, frozen and cut off.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from shared import protocol as p
from shared.wire import Accept, End, Event, Fail, Frame, Job, Nack, Text, Usage, encode

GID = "g1"
STEP = 0.02
ANNOUNCE = 0.5
# Long enough for every timer but the tombstones: terminals, orphans, disconnects, back-offs.
QUIET = 20.0
FRAMES = msgspec.msgpack.Decoder(Frame)


def word(sid: int, k: int) -> str:
    return f"{sid}.{k} "


def answer(sid: int, tokens: int) -> str:
    return "".join(word(sid, k) for k in range(tokens))


class Record:
    """What the gateway's caller saw of one sid."""

    def __init__(self, sid: int, wid: str, tokens: int) -> None:
        self.sid = sid
        self.wid = wid
        self.tokens = tokens
        self.job: Job | None = None
        self.text = ""
        self.next = 0
        self.accepts = 0
        self.resent = 0
        self.conclusion: Any = None

    def see(self, event: Event) -> None:
        assert self.conclusion is None, f"{event} after {self.conclusion}"
        assert event.seq == self.next, f"{event} where {self.next} was due"
        self.next += 1
        if isinstance(event, Text):
            self.text += event.text
        elif isinstance(event, End | Fail):
            self.conclusion = event

    def conclude(self, instruction: Any) -> None:
        assert self.conclusion is None, f"{instruction} after {self.conclusion}"
        assert self.next == 0
        self.conclusion = instruction

    def check(self) -> None:
        """The text is what the worker emitted, or a prefix of it; a good end has all of it."""
        assert answer(self.sid, min(self.tokens, self.next)).startswith(self.text)
        if isinstance(self.conclusion, End) and self.conclusion.reason == "stop":
            assert self.text == answer(self.sid, self.tokens)
            assert self.conclusion.usage.completion == self.tokens

    @property
    def code(self) -> str:
        """How it ended, in one word."""
        match self.conclusion:
            case End():
                return self.conclusion.reason
            case Fail():
                return self.conclusion.code
            case p.Refused():
                return self.conclusion.nack.code
            case p.Unanswered():
                return "unanswered"
        return ""


class Node:
    """A process: dead, frozen, cut off, or well. What reaches a frozen one waits in its socket."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.births = 0
        self.alive = False
        self.frozen = False
        self.connected = True
        self.socket: list[Callable[[], None]] = []

    @property
    def reachable(self) -> bool:
        return self.alive and self.connected

    def receive(self, handle: Callable[[], None]) -> None:
        if not self.reachable:
            return
        if self.frozen:
            self.socket.append(handle)
        else:
            handle()
            self.obey()

    def thaw(self) -> None:
        self.frozen = False
        waiting, self.socket = self.socket, []
        if self.alive:
            for handle in waiting:
                handle()
            self.end.lagged(self.world.now)
            self.obey()

    def cut(self) -> None:
        if self.connected and self.alive:
            self.connected = False
            self.end.disconnected(self.world.now)

    def join(self) -> None:
        if not self.connected and self.alive:
            self.connected = True
            self.end.reconnected(self.world.now)
            self.obey()
        self.connected = True

    def kill(self) -> None:
        self.alive = False
        self.socket.clear()


class Gateway(Node):
    def start(self) -> None:
        self.kill()
        self.births += 1
        self.alive, self.frozen, self.connected = True, False, True
        self.gep = f"gep{self.births}"
        # A new process chooses the same sids again: they are unique within an epoch only.
        self.end = p.GatewayEnd(GID, self.gep, self.world.timing)
        self.records: dict[int, Record] = {}

    def obey(self) -> None:
        if self.frozen:
            return
        world, now = self.world, self.world.now
        for done in self.end.instructions():
            match done:
                case p.SendCredit(wid, credit):
                    world.send(self, wid, "credit", lambda n, c=credit: n.end.credit(world.now, GID, c))
                case p.SendCancel(wid, cancel):
                    world.send(self, wid, "cancel", lambda n, c=cancel: n.end.cancel(world.now, GID, c))
                case p.ResendJob(wid, sid):
                    self.records[sid].resent += 1
                    self.publish(wid, self.records[sid].job)
                case p.Accepted(sid, _):
                    self.records[sid].accepts += 1
                case p.Refused(sid, _) | p.Unanswered(sid):
                    self.records[sid].conclude(done)
                case p.Deliver(sid, events):
                    assert events
                    for event in events:
                        self.records[sid].see(event)
        assert now == world.now

    def open(self, wid: str, tokens: int) -> int:
        body = b"x" * 1000
        sid = self.end.open(self.world.now, wid, len(body))
        job = Job(
            gep=self.gep, sid=sid, aid=f"{self.gep}.{sid}", tenant="t", model="m", version="1", kind="ids", input=tokens,
            deadline_ms=60_000,
        )  # fmt: skip
        record = self.records[sid] = Record(sid, wid, abs(tokens))
        record.job = job
        self.world.history.append(record)
        self.publish(wid, job)
        self.obey()
        return sid

    def publish(self, wid: str, job: Job) -> None:
        birth = self.births
        self.world.send(self, wid, "job", lambda n: n.end.job(self.world.now, GID, job, (birth, job.sid)))

    def cancel(self, sid: int, reason: str = "client") -> None:
        self.end.cancel(self.world.now, sid, reason)
        self.obey()


class Request:
    """A generation in the engine: `tokens` words, one a step; negative ones are refused by the worker."""

    def __init__(self, tokens: int, decide_at: float) -> None:
        self.tokens = tokens
        self.decide_at = decide_at
        self.made = 0
        self.decided = False
        self.stopping = False


class Worker(Node):
    def start(self) -> None:
        self.kill()
        self.births += 1
        self.alive, self.frozen, self.connected = True, False, True
        self.wep = f"{self.name}.wep{self.births}"
        self.end = p.WorkerEnd(self.name, self.wep, self.world.timing)
        self.engine: dict[tuple[str, int], Request] = {}
        self.starts: dict[tuple[str, int], int] = defaultdict(int)
        self.orphans: list[p.Orphaned] = []
        self.aborted: list[tuple[str, int]] = []
        self.next_announce = self.world.now

    def obey(self) -> None:
        if self.frozen:
            return
        world = self.world
        at = self.end.flush_at()
        if at is not None and at <= world.now:
            self.end.flush(world.now)
        for done in self.end.instructions():
            match done:
                case p.Start(gid, sid, job):
                    self.starts[job.aid, sid] += 1
                    self.engine[gid, sid] = Request(job.input, world.now + world.decide())
                case p.Answer((birth, sid), reply):
                    world.reply(self, birth, sid, reply)
                case p.SendFrame(_, frame):
                    data = encode(frame)
                    weights = sum(p.outbox.weigh(event) for event in frame.events)
                    assert len(data) <= weights + 64, "flow control must not underestimate"
                    world.frames_sent += 1
                    world.send(
                        self, GID, "frame",
                        lambda n, d=data: n.end.frame(world.now, self.name, FRAMES.decode(d), len(d)),
                    )  # fmt: skip
                case p.Abort(gid, sid, _, final):
                    self.aborted.append((gid, sid))
                    if final:
                        self.engine.pop((gid, sid), None)
                    elif request := self.engine.get((gid, sid)):
                        request.stopping = True
                case p.Orphaned():
                    assert 0 <= done.acked <= done.generated
                    self.orphans.append(done)

    def step(self) -> None:
        """One step of every running request, as an engine's batch does it."""
        now, end = self.world.now, self.end
        for (gid, sid), request in list(self.engine.items()):
            if request.stopping:
                end.end(now, gid, sid, "cancelled", Usage(completion=request.made))
            elif not request.decided:
                if now < request.decide_at:
                    continue
                request.decided = True
                if request.tokens >= 0:
                    end.answer(now, gid, sid, Accept(wep=self.wep, sid=sid, prompt_tokens=3))
                    end.prefill(now, gid, sid, 3, 3, 0)
                    continue
                end.answer(now, gid, sid, Nack(wep=self.wep, sid=sid, code="busy", message="full"))
            elif request.made < request.tokens:
                end.text(now, gid, sid, word(sid, request.made), (request.made,))
                request.made += 1
                continue
            else:
                end.end(now, gid, sid, "stop", Usage(prompt=3, completion=request.made))
            del self.engine[gid, sid]
        self.obey()


class World:
    """The network and the clock. `loss`, `twice` in 0..1, `delay` in seconds; `drop` decides about single messages."""

    def __init__(self, workers: int = 1, timing: p.Timing = p.Timing(), seed: int = 0) -> None:  # noqa: B008
        self.timing = timing
        self.now = 100.0
        self.rng = random.Random(seed)
        self.loss = self.twice = self.delay = 0.0
        self.decide_delay = 0.0
        self.drop: Callable[[str, Node, Any], bool] = lambda kind, sender, payload: False
        self.log: list[tuple[float, str]] = []
        self.frames_sent = 0
        self.history: list[Record] = []
        self._queue: list[tuple[float, int, Node, Callable[[], None]]] = []
        self._last: dict[tuple[str, int, str, str], float] = {}
        self._serial = 0
        self._next_step = self.now
        self.gateway = Gateway(self, GID)
        self.workers = {f"w{i}": Worker(self, f"w{i}") for i in range(1, workers + 1)}
        for node in self.nodes():
            node.start()

    def nodes(self) -> list[Node]:
        return [self.gateway, *self.workers.values()]

    def decide(self) -> float:
        return self.rng.random() * self.decide_delay

    def send(self, sender: Node, to: str, kind: str, handle: Callable[[Any], None]) -> None:
        if not sender.reachable:
            return
        node = self.gateway if to == GID else self.workers[to]
        if kind in ("frame", "credit", "cancel", "job") and not node.reachable:
            self._later(sender, "responders", sender.births, lambda: self._no_responders(sender, to))
        self.log.append((self.now, kind))
        if self.drop(kind, sender, to) or self.rng.random() < self.loss:
            return
        self._post(sender, node, kind, lambda: handle(node))

    def reply(self, worker: Node, birth: int, sid: int, reply: Accept | Nack) -> None:
        """A reply goes to the inbox of the process that asked. Each request has its own: no order between them."""
        gateway = self.gateway

        def handle() -> None:
            if gateway.births == birth:
                gateway.end.replied(self.now, worker.name, sid, reply)

        if worker.reachable and not self.drop("reply", worker, reply) and self.rng.random() >= self.loss:
            self._post(worker, gateway, f"reply {sid}", handle)

    def _no_responders(self, node: Node, about: str) -> None:
        node.end.no_responders(self.now, about)

    def _post(self, sender: Node, node: Node, kind: str, handle: Callable[[], None]) -> None:
        key = (sender.name, sender.births, node.name, kind)
        at = max(self._last.get(key, 0.0), self.now + 0.0005 + self.rng.random() * self.delay)
        self._last[key] = at
        self._push(at, node, handle)
        if self.rng.random() < self.twice:
            self._push(at + self.rng.random() * 2 * self.delay, node, handle)

    def _later(self, node: Node, kind: str, birth: int, handle: Callable[[], None]) -> None:
        self._push(self.now + 0.0005, node, lambda: handle() if node.births == birth else None)

    def _push(self, at: float, node: Node, handle: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (at, self._serial, node, handle))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while True:
            at = self._next_time()
            if at > until:
                break
            assert at >= self.now - 1e-9
            self.now = max(self.now, at)
            self._turn()
        self.now = until

    def _next_time(self) -> float:
        times = [self._next_step]
        if self._queue:
            times.append(self._queue[0][0])
        for node in self.nodes():
            if node.alive and not node.frozen:
                times += [t for t in (node.end.next_wake(),) if t is not None]
                if isinstance(node, Worker) and (flush := node.end.flush_at()) is not None:
                    times.append(flush)
        return max(min(times), self.now)

    def _turn(self) -> None:
        while self._queue and self._queue[0][0] <= self.now:
            _, _, node, handle = heapq.heappop(self._queue)
            node.receive(handle)
        stepping = self.now >= self._next_step
        if stepping:
            self._next_step += STEP
        for node in self.nodes():
            if not node.alive or node.frozen:
                continue
            wake = node.end.next_wake()
            if wake is not None and wake <= self.now:
                node.end.tick(self.now)
                later = node.end.next_wake()
                assert later is None or later > wake or node.obey() is None, "a tick must make progress"
            if stepping and isinstance(node, Worker):
                if self.now >= node.next_announce:
                    node.next_announce = self.now + ANNOUNCE
                    wep, wid = node.wep, node.name
                    self.send(node, GID, "ann", lambda n, e=wep, w=wid: n.end.announced(self.now, w, e))
                node.step()
            node.obey()

    def settle(self) -> None:
        """Mend everything, wait for every timer, then check that nothing is left anywhere."""
        self.loss = self.twice = self.delay = 0.0
        self.drop = lambda kind, sender, payload: False
        for node in self.nodes():
            if not node.alive:
                node.start()
            if node.frozen:
                node.thaw()
            node.join()
        self.run(1.0)
        self.run(2.0)
        for sid in self.gateway.records:
            self.gateway.cancel(sid, "end of test")
        self.run(QUIET)
        self.check_quiet()

    def check_quiet(self) -> None:
        for record in self.history:
            record.check()
        for record in self.gateway.records.values():
            assert record.conclusion is not None, f"stream {record.sid} never ended"
            assert record.accepts <= 1
            assert record.resent <= 1
        assert self.gateway.end.open_count() == 0
        assert not any(self.gateway.end.live(sid) for sid in self.gateway.records)
        for worker in self.workers.values():
            assert worker.end.open_count() == 0
            assert worker.end.unacked_count() == 0
            assert not worker.engine
            assert all(n == 1 for n in worker.starts.values()), "a job ran twice"
