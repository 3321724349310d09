"""An engine without a model: exact, cheap, and honest about the seam. For tests, demonstrations and load runs.

Modes (`EngineSpec.options["mode"]`): `script` sends a fixed text as fast as the loop allows; `hash` makes token k a
function of all tokens before it, the prompt included, so that a resumed run can be compared byte by byte; `pace` sends
`@<CLOCK_MONOTONIC in ns>@ ` every 1000/`rate` ms, so that a reader on the same machine can measure the way. One token
is one chunk. `tokens` is how long the answer would like to be. `paced` true gives script and hash that rhythm, too. As
in any engine that batches, all paced streams share their steps: a new one joins at the next.
"""

import asyncio
import hashlib
import heapq
import itertools
import platform
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

from shared.errors import EngineError
from shared.wire import FinishReason, Timings, Usage
from workers.engines.base import (
    Capabilities,
    Delta,
    EngineEvent,
    EngineRequest,
    EngineSpec,
    Failed,
    Finished,
    NeedsCapacity,
    Prefilled,
    Progress,
    Started,
    Stats,
    TooLong,
)
from workers.engines.checks import refuse, too_long
from workers.engines.output import Output
from workers.engines.tickets import Desk, Ticket, settle
from workers.gguf import Vocabulary

_CONTROL: Final = ("<|bos|>", "<|eos|>", "<|turn|>")
_VOCABULARY: Final = Vocabulary(
    [bytes([byte]) for byte in range(256)] + [text.encode() for text in _CONTROL], (256, 257, 258), bos=256, eos=257
)
_TEMPLATE: Final = (
    "{% for message in messages %}<|turn|>{{ message.role }}: {{ message.content }}\n{% endfor %}<|turn|>assistant: "
)
_SCRIPT: Final = b"The quick brown fox jumps over the lazy dog. "
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789"
_DELTAS: Final = tuple(Delta(chr(byte), (byte,)) for byte in range(128))
_BURST: Final = 64
_TICK_S: Final = 0.0005
_PACE_TOKEN: Final = ord("@")


class ByteTokenizer:
    """A token is a byte; three control tokens follow."""

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """See `Tokenizer`."""
        if not special:
            return list(text.encode())
        ids: list[int] = []
        while text:
            starts = [(text.find(control), n) for n, control in enumerate(_CONTROL) if control in text]
            if not starts:
                break
            at, which = min(starts)
            ids += text[:at].encode()
            ids.append(256 + which)
            text = text[at + len(_CONTROL[which]) :]
        return ids + list(text.encode())

    async def decode(self, ids: tuple[int, ...]) -> str:
        """See `Tokenizer`."""
        return b"".join(_VOCABULARY.pieces[n] for n in ids).decode("utf-8", "replace")


class _Wheel:
    """One timer for all paced streams: it wakes everybody who is due within half a millisecond."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timer: asyncio.Handle | None = None
        self._aimed = float("inf")  # uvloop's handle of a time that has passed does not know it
        self._order = itertools.count()

    async def until(self, due: float, ticket: Ticket) -> bool:
        """Wait until the loop's clock shows `due`; False if `ticket` was interrupted first."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        ticket.wake = lambda: settle(turn)
        heapq.heappush(self._due, (due, next(self._order), turn))
        if due < self._aimed:
            self._aim(loop)
        await turn
        ticket.wake = None
        return ticket.interrupt is None

    def _aim(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._aimed = self._due[0][0] if self._due else float("inf")
        self._timer = loop.call_at(self._aimed, self._fire, loop) if self._due else None

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        limit = loop.time() + _TICK_S
        while self._due and self._due[0][0] <= limit:
            turn = heapq.heappop(self._due)[2]
            if not turn.done():
                turn.set_result(None)
        self._timer = None
        self._aim(loop)


def hash_tokens(prefix: tuple[int, ...]) -> Iterator[int]:
    """Printable byte tokens, each a function of every token before it: state = state * a + token + c mod 2^64 (LCG)."""
    state = 0x9E3779B97F4A7C15
    for token in prefix:
        state = (state * 6364136223846793005 + token + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
    while True:
        token = _LETTERS[(state >> 33) % len(_LETTERS)]
        yield token
        state = (state * 6364136223846793005 + token + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF


def script_tokens(done: int) -> Iterator[int]:
    """The script from its token `done` on, again and again."""
    return itertools.islice(itertools.cycle(_SCRIPT), done % len(_SCRIPT), None)


class NullEngine:
    """See the module. Greedy and sampled runs are the same; seeds and sampling settings change nothing."""

    def __init__(self) -> None:
        self._tokenizer = ByteTokenizer()
        self._capabilities: Capabilities | None = None
        self._desk = Desk(0)
        self._wheel = _Wheel()
        self._mode = "script"
        self._paced = False
        self._rate = 50.0
        self._tokens = 100
        self._steps = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0

    @property
    def tokenizer(self) -> ByteTokenizer:
        """See `Engine`."""
        return self._tokenizer

    async def load(self, spec: EngineSpec, progress: Progress) -> Capabilities:
        """See `Engine`. Raises EngineError for unknown modes and impossible rates."""
        mode = str(spec.options.get("mode", "script"))
        self._rate = float(spec.options.get("rate", 50.0))
        self._tokens = int(spec.options.get("tokens", 100))
        if mode not in ("script", "hash", "pace") or not self._rate > 0 or self._tokens < 1:
            raise EngineError(f"the null engine has no mode {mode!r} at rate {self._rate} with {self._tokens} tokens")
        self._mode = mode
        self._paced = mode == "pace" or bool(spec.options.get("paced", False))
        self._desk = Desk(spec.slots)
        self._capabilities = Capabilities(
            model=spec.model,
            version=spec.version,
            digest=hashlib.sha256(f"null {mode}".encode()).hexdigest(),
            vocab_hash=_VOCABULARY.digest,
            vocab_size=len(_VOCABULARY),
            slots=spec.slots,
            context=spec.context,
            max_output=min(spec.max_output or spec.context, spec.context),
            features=("resume",) if mode != "pace" else (),
            device="cpu",
            runtime=f"python {platform.python_version()}",
            kernel="none",
            chat_template=_TEMPLATE,
            bos=_CONTROL[0],
            eos=_CONTROL[1],
            control_tokens=_CONTROL,
        )
        progress(1.0, "ready")
        return self._capabilities

    def capabilities(self) -> Capabilities:
        """See `Engine`."""
        if self._capabilities is None:
            raise EngineError("no model is loaded")
        return self._capabilities

    def fits(self, request: EngineRequest) -> TooLong | NeedsCapacity | None:
        """See `Engine`."""
        if (long := too_long(request, self.capabilities().context)) is not None:
            return long
        return None if self._desk.free else NeedsCapacity("all slots are taken")

    def submit(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        """See `Engine`."""
        if self._capabilities is None:
            return _one(Failed("unloaded", retryable=True, message="no model is loaded"))
        if (refused := refuse(request, self._capabilities)) is not None:
            return _one(refused)
        try:
            return self._run(request, self._desk.enter(request), self._desk)
        except EngineError as error:
            return _one(Failed("bad_request", retryable=False, message=str(error)))

    async def _run(self, request: EngineRequest, ticket: Ticket, desk: Desk) -> AsyncIterator[EngineEvent]:
        prompt, made = len(request.prompt), len(request.resume.ids) if request.resume is not None else 0
        total = max(made, min(request.max_tokens, self._tokens))
        reason: FinishReason = "length" if request.max_tokens <= self._tokens else "stop"
        output = Output(request)
        try:
            if not await desk.seat(ticket):
                yield ticket.verdict(Usage(prompt=prompt, completion=made), _timings(ticket))
                return
            yield Started()
            self._prompt_tokens += prompt
            yield Prefilled(prompt, prompt, 0)
            if request.resume is not None and (text := output.push(_VOCABULARY.text(request.resume.ids))):
                yield Delta(text)
            source = self._source(request)
            plain = not (request.stop or request.stop_ids or made or self._paced)
            origin, first = self._last_step(), made
            while made < total and ticket.interrupt is None and not output.stopped:
                if self._paced:
                    if not await self._wheel.until(origin + (made - first + 1) / self._rate, ticket):
                        break
                elif made % _BURST == _BURST - 1:
                    await asyncio.sleep(0)
                token = next(source)
                made += 1
                self._steps += 1
                self._completion_tokens += 1
                if plain:
                    yield _DELTAS[token]
                    continue
                if token in request.stop_ids:
                    reason = "stop"
                    yield Delta(output.flush(), (token,))
                    break
                text = f"@{time.monotonic_ns()}@ " if self._mode == "pace" else chr(token)
                yield Delta(output.push(text), (token,))
            if text := output.flush():
                yield Delta(text)
            usage = Usage(prompt=prompt, completion=made)
            if ticket.interrupt is not None:
                yield ticket.verdict(usage, _timings(ticket))
            else:
                yield Finished("stop" if output.stopped else reason, usage, _timings(ticket))
        finally:
            desk.leave(ticket)

    def _last_step(self) -> float:
        """When the last step was, by the loop's clock; the next is 1/`rate` later."""
        return asyncio.get_running_loop().time() // (1 / self._rate) / self._rate

    def _source(self, request: EngineRequest) -> Iterator[int]:
        done = request.resume.ids if request.resume is not None else ()
        if self._mode == "hash":
            return hash_tokens(request.prompt + done)
        return script_tokens(len(done)) if self._mode == "script" else itertools.repeat(_PACE_TOKEN)

    def cancel(self, request_id: str) -> bool:
        """See `Engine`."""
        return self._desk.cancel(request_id)

    def stats(self) -> Stats:
        """See `Engine`. There is no cache, so its numbers stay zero."""
        return Stats(
            waiting=self._desk.waiting,
            decode=self._desk.running,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
        )

    def healthy(self) -> bool:
        """See `Engine`."""
        return self._capabilities is not None

    async def drain(self, timeout_s: float) -> bool:
        """See `Engine`."""
        return await self._desk.drained(timeout_s)

    async def unload(self) -> None:
        """See `Engine`."""
        self._capabilities = None
        self._desk.stop_all("unloaded")


def _timings(ticket: Ticket) -> Timings:
    now = asyncio.get_running_loop().time()
    begun = ticket.started_at if ticket.state == "running" else now
    return Timings(queue_ms=(begun - ticket.queued_at) * 1000, decode_ms=(now - begun) * 1000)


async def _one(event: EngineEvent) -> AsyncIterator[EngineEvent]:
    yield event
