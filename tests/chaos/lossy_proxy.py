"""Bad weather between one process and its NATS server: a proxy that loses, delays, doubles and cuts, by a seed.

It stands where the server would: TLS first, with the server's own certificate, and client certificates demanded; behind
it, it shows the certificate of the process it serves. The NKey's proof passes through untouched.

    process ==TLS==> Proxy ==TLS==> nats-server
             Lane "up": PUB, HPUB
             Lane "down": MSG, HMSG

What befalls a message depends on nothing but the seed, the process, the direction, its kind, and how many of that kind
went before: the thirtieth frame of a seed is lost in every run of it. When that frame is sent is up to the machine.
Messages of one subject keep their order, as NATS itself keeps it; different subjects overtake each other.
"""

import asyncio
import contextlib
import random
import ssl
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from shared.identity import AUTHORITY, CERTIFICATE, KEY, Identity
from tests.chaos.nats_wire import Piece, Splitter

if TYPE_CHECKING:
    from collections.abc import Callable

Way = Literal["up", "down"]
_CHUNK = 1 << 16
_GUST = 6


@dataclass(frozen=True)
class Weather:
    """Chances per message and direction; a gust takes _GUST messages of a kind in a row; `late_s` is the longest delay."""

    seed: int
    lose: float = 0.0
    gust: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    late_s: float = 0.0
    cut: float = 0.0

    @classmethod
    def drawn(cls, seed: int) -> "Weather":
        """One of many: each sort of trouble may be rare or frequent, and all but losses may be absent."""
        dice = random.Random(seed)
        return cls(
            seed,
            lose=dice.choice((0.02, 0.05, 0.12)),
            gust=dice.choice((0.0, 0.02, 0.05)),
            twice=dice.choice((0.0, 0.03, 0.1)),
            late=dice.choice((0.0, 0.1, 0.3)),
            late_s=dice.choice((0.02, 0.1, 0.3)),
            cut=dice.choice((0.0, 0.003, 0.01)),
        )


class Fate(NamedTuple):
    """How many copies of a message arrive, how many seconds late, and whether the connection is cut within it."""

    copies: int = 1
    late_s: float = 0.0
    cut: bool = False


def fate(weather: Weather, name: str, way: Way, kind: str, n: int) -> Fate:
    """What becomes of the `n`-th message of a kind."""
    where = f"{weather.seed}/{name}/{way}/{kind}"
    if random.Random(f"{where}/gust {n // _GUST}").random() < weather.gust:
        return Fate(0)
    dice = random.Random(f"{where}/{n}")
    lost, twice, late, cut = (dice.random() < p for p in (weather.lose, weather.twice, weather.late, weather.cut))
    return Fate(0 if lost else 1 + twice, dice.uniform(0.0, weather.late_s) if late else 0.0, cut)


def kind_of(subject: str) -> str:
    """job, credit, cancel, frame, ann, ghb, usage, reply (to a job), word (any other answer), other (JetStream's)."""
    match subject.split("."):
        case ["ef", "w", _, what, _]:
            return what
        case ["ef", "g", _, "f", _]:
            return "frame"
        case ["ef", what, *_]:
            return what
        case ["_INBOX", _, _, "j", *_]:
            return "reply"
        case ["_INBOX", *_]:
            return "word"
    return "other"


class CutError(Exception):
    """The weather ends this connection."""


class Lane:
    """One direction of one connection."""

    def __init__(self, proxy: "Proxy", way: Way, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._way: Way = way
        self._writer = writer
        self._splitter = Splitter()
        self._waiting: dict[str, deque[bytes]] = {}
        self._free_at: dict[str, float] = {}

    async def pump(self, reader: asyncio.StreamReader) -> None:
        """Until either end closes, or the weather cuts it."""
        while data := await reader.read(_CHUNK):
            for piece in self._splitter.feed(data):
                self.take(piece)
            await self._writer.drain()

    def take(self, piece: Piece) -> None:
        """Pass one piece on, or not. Raises CutError."""
        if not piece.subject:
            self.write(piece.raw)
            return
        fated = self._proxy.judge(self._way, piece)
        if fated.cut:
            self.write(piece.raw[: len(piece.raw) // 2])
            raise CutError
        for _ in range(fated.copies):
            self._send(piece, fated.late_s)

    def _send(self, piece: Piece, late_s: float) -> None:
        """Now or later, but never before what went before on the same subject."""
        loop = asyncio.get_running_loop()
        now, subject = loop.time(), piece.subject
        due = max(now + late_s, self._free_at.get(subject, 0.0))
        waiting = self._waiting.setdefault(subject, deque())
        if due <= now and not waiting:
            self.write(piece.raw)
            return
        self._free_at[subject] = due
        waiting.append(piece.raw)
        loop.call_at(due, self._next, waiting)  # whichever of its timers comes first takes the oldest

    def _next(self, waiting: deque[bytes]) -> None:
        self.write(waiting.popleft())

    def write(self, raw: bytes) -> None:
        """To the other side, unless it is gone."""
        if not self._writer.is_closing():
            self._writer.write(raw)


class Proxy:
    """In front of the server, for one process. The weather is calm until `weather` is set.

    `meddle` sees every message before the weather does, and loses those for which it says True.
    """

    def __init__(self, name: str, identity: Identity, bus: Path, port: int) -> None:
        self.name = name
        self.port = 0
        self.weather: Weather | None = None
        self.meddle: Callable[[Way, str, Piece], bool] | None = None
        self.done: Counter[str] = Counter()
        self._numbers: Counter[tuple[Way, str]] = Counter()
        self._identity = identity
        self._bus = bus
        self._behind = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._up: Lane | None = None

    @property
    def url(self) -> str:
        """Where the process finds its bus."""
        return f"nats://127.0.0.1:{self.port}"

    async def open(self) -> "Proxy":
        """Listen on a port of its own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._bus / "server" / CERTIFICATE, self._bus / "server" / KEY)
        context.load_verify_locations(self._bus / "authority" / AUTHORITY)
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """Stop listening and end what is open."""
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    def inject(self, piece: Piece) -> None:
        """Send the server a message in the process's name, now."""
        assert self._up is not None
        self._up.write(piece.raw)

    def judge(self, way: Way, piece: Piece) -> Fate:
        """What becomes of this message; counted."""
        kind = kind_of(piece.subject)
        if self.meddle is not None and self.meddle(way, kind, piece):
            self.done["lost"] += 1
            return Fate(0)
        if self.weather is None:
            return Fate()
        self._numbers[way, kind] += 1
        fated = fate(self.weather, self.name, way, kind, self._numbers[way, kind])
        self.done.update(
            cuts=fated.cut, lost=not fated.copies, twice=fated.copies > 1, late=bool(fated.copies and fated.late_s)
        )
        return fated

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the process: both directions, until one of them ends."""
        writers = [writer]
        try:
            behind, server = await asyncio.open_connection("127.0.0.1", self._behind, ssl=self._identity.context())
            writers.append(server)
            self._up = Lane(self, "up", server)
            pumps = [
                asyncio.ensure_future(lane.pump(source))
                for lane, source in ((self._up, reader), (Lane(self, "down", writer), behind))
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                for outcome in await asyncio.gather(*pumps, return_exceptions=True):
                    if isinstance(outcome, Exception) and not isinstance(outcome, CutError | OSError):
                        raise outcome
        finally:
            for one in writers:
                one.transport.abort()
            for one in writers:
                with contextlib.suppress(OSError):
                    await one.wait_closed()
