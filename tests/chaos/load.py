"""Clients that never stop asking, each request under a name of its own, and what became of every one of them."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tests.e2e.clients import Call, chat
from tests.e2e.stack import Stack
from workers.engines.null import ByteTokenizer, hash_tokens

HANG_S = 100.0
"""Nobody waits longer for the end of a request: longer than the queue's bound, and any of these answers."""
WHOLE, CUT, REFUSED, HUNG = "whole", "cut", "no connection", "HUNG"


@dataclass
class Asked:
    """One request. `end` is WHOLE, CUT (closed without a terminal), REFUSED, HUNG, or the code of a typed error.

    `tokens` were wanted, `received` came; times are by `time.monotonic`. `usage` is what a whole answer said of itself.
    """

    rid: str
    stream: bool
    tokens: int
    at: float
    status: int = 0
    text: str = ""
    received: int = 0
    usage: int = 0
    end: str = ""
    ended_at: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """How it was asked for."""
        return "stream" if self.stream else "at once"


class Load:
    """`clients` that ask, one request after the other, until told to stop; a seed decides what they ask for.

    The first of them only ever wants one token: whether there is service.
    """

    def __init__(self, stack: Stack, model: str, seed: int, clients: int, most_tokens: int) -> None:
        self.asked: list[Asked] = []
        self._stack = stack
        self._model = model
        self._key = stack.key
        self._prefix = f"chaos-{seed}"
        self._chance = random.Random(seed)
        self._clients = clients
        self._most_tokens = most_tokens
        self._stopping = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The load, while the body runs. What has begun is brought to its end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._client(1, 0.0))
            for _ in range(self._clients - 1):
                group.create_task(self._client(self._most_tokens, 0.7))
            try:
                yield
            finally:
                self._stopping.set()

    async def ask(self, tokens: int, *, stream: bool) -> Asked:
        """One request, to its end, whatever that is."""
        asked = Asked(f"{self._prefix}-{len(self.asked)}", stream, tokens, time.monotonic())
        self.asked.append(asked)
        try:
            async with asyncio.timeout(HANG_S):
                asked.end = await self._to_the_end(asked)
        except TimeoutError:
            asked.end = HUNG
        except ConnectionRefusedError:
            asked.end = REFUSED
        except (OSError, asyncio.IncompleteReadError):
            asked.end = CUT
        asked.ended_at = time.monotonic()
        return asked

    async def _client(self, most_tokens: int, streams: float) -> None:
        while not self._stopping.is_set():
            chance = self._chance
            asked = await self.ask(chance.randint(1, most_tokens), stream=chance.random() < streams)
            pause_s = chance.uniform(0.0, 0.1) if asked.end == WHOLE else 0.2
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _to_the_end(self, asked: Asked) -> str:
        call = Call(*await asyncio.open_connection("127.0.0.1", self._stack.port))
        try:
            call.write(self._request(asked))
            asked.status = await call.head()
            if call.headers.get("x-request-id") != asked.rid:
                asked.wrong.append(f"answered under the name {call.headers.get('x-request-id')!r}")
            if asked.status != 200:
                return _code(asked, await call.body())
            return await (self._stream if asked.stream else self._at_once)(call, asked)
        finally:
            call.drop()
            Call.all.remove(call)

    async def _stream(self, call: Call, asked: Asked) -> str:
        while (event := await call.next()) is not None:
            for choice in event.get("choices", []):
                asked.text += choice["delta"].get("content") or ""
                self._count(asked, choice)
            if event.get("usage"):
                asked.usage = event["usage"]["completion_tokens"]
        if call.error is not None:
            return _code(asked, {"error": call.error})
        return WHOLE if call.done else CUT

    async def _at_once(self, call: Call, asked: Asked) -> str:
        body = await call.body()
        [choice] = body["choices"]
        asked.text = choice["message"]["content"]
        self._count(asked, choice)
        asked.usage = body["usage"]["completion_tokens"]
        return WHOLE

    def _count(self, asked: Asked, choice: dict[str, Any]) -> None:
        if self._model == "null":
            asked.received = len(asked.text)
        elif choice.get("logprobs"):
            asked.received += len(choice["logprobs"]["content"])

    def _request(self, asked: Asked) -> bytes:
        body = chat(asked.rid, model=self._model, stream=asked.stream, max_tokens=asked.tokens, temperature=0)
        if self._model != "null":
            body["logprobs"] = True  # one entry for each token: text alone does not say how many there were
        if asked.stream:
            body["stream_options"] = {"include_usage": True}
        payload = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: evenflow\r\nauthorization: Bearer {self._key}\r\n"
            f"content-type: application/json\r\nx-request-id: {asked.rid}\r\ncontent-length: {len(payload)}\r\n"
            "connection: close\r\n\r\n"
        )
        return head.encode() + payload


def outcomes(asked: list[Asked]) -> str:
    """How many of each kind ended in which way, for a person."""
    counts = Counter((one.end, one.kind) for one in asked)
    ends = sorted({end for end, _ in counts}, key=lambda end: -counts[end, "stream"] - counts[end, "at once"])
    lines = [f"  {'requests':<20} {'stream':>8} {'at once':>8}"]
    lines += [f"  {end:<20} {counts[end, 'stream']:>8} {counts[end, 'at once']:>8}" for end in ends]
    return "\n".join(lines)


async def null_text(rid: str, tokens: int) -> str:
    """What the null engine answers to that name: each token depends on all before it, those of the prompt included."""
    prompt = await ByteTokenizer().encode(f"<|turn|>user: {rid}\n<|turn|>assistant: ", special=True)
    return bytes(islice(hash_tokens(tuple(prompt)), tokens)).decode()


def _code(asked: Asked, body: dict[str, Any]) -> str:
    error = body["error"]
    if not error.get("code") or not error.get("message") or error["code"] == "internal_error":
        asked.wrong.append(f"an error that says nothing: {body}")
    return str(error.get("code") or error.get("type"))
