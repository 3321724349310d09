"""The stand-in for a model server where no C compiler is at hand: what `upstream.c` says, byte for byte, but slower.

python -m infra.bench.upstream PORT
"""

import asyncio
import re
import sys
import time
from typing import Any

import msgspec

try:
    import uvloop
except ImportError:  # pragma: no cover - a dependency of Evenflow, though not of this program
    uvloop = None  # type: ignore[assignment]

PACES_S = {"flood": 0.0, "paced": 0.020, "slow": 0.200}
CHUNKS, MOST_CHUNKS = 100, 100_000
EVENT = (
    b'data: {"id":"chatcmpl-upstream","object":"chat.completion.chunk","created":1700000000,"model":"%s",'
    b'"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-upstream","object":"chat.completion.chunk","created":1700000000,"model":"%s",'
    b'"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
WHOLE = (
    b'{"id":"chatcmpl-upstream","object":"chat.completion","created":1700000000,"model":"%s",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"Hello there!"},'
    b'"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":12,"total_tokens":22}}'
)
MODELS = b'{"object":"list","data":[%s]}' % b",".join(
    b'{"id":"%s","object":"model","created":1700000000,"owned_by":"bench"}' % name.encode() for name in PACES_S
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


def whole(json: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(json), json)


class Stream:
    """One streamed answer in the making."""

    def __init__(self, model: str, wanted: int) -> None:
        self.model, self.wanted, self.left = model.encode(), wanted, wanted
        self.pace_s = PACES_S[model]

    def content(self) -> bytes:
        """The next content event, and what ends the stream after the last one."""
        text = b"@%d@ " % time.monotonic_ns() if self.pace_s else b" token"
        made = chunk(EVENT % (self.model, b'{"content":"%s"}' % text, b"null"))
        self.left -= 1
        if self.left:
            return made
        made += chunk(EVENT % (self.model, b"{}", b'"stop"')) + chunk(
            USAGE % (self.model, self.wanted, self.wanted + 10)
        )
        return made + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection; requests behind an open stream wait for its end."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = b""
        self.stream: Stream | None = None
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.received += data
        while self.stream is None:
            head, found, rest = self.received.partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            size = int(length[1]) if length else 0
            if not found or len(rest) < size:
                return
            self.received = rest[size:]
            self.answer(rest[:size], post=head.startswith(b"POST"))

    def answer(self, body: bytes, *, post: bool) -> None:
        if not post:
            self.transport.write(whole(MODELS))
            return
        asked = msgspec.json.decode(body)
        model = next((name for name in PACES_S if str(asked.get("model", "")).startswith(name)), "flood")
        if not asked.get("stream"):
            self.transport.write(whole(WHOLE % model.encode()))
            return
        most = asked.get("max_tokens") or 0
        stream = Stream(model, most if 0 < most < MOST_CHUNKS else CHUNKS)
        first = STREAM_HEAD + chunk(EVENT % (stream.model, b'{"role":"assistant","content":""}', b"null"))
        if not stream.pace_s:
            self.transport.write(first + b"".join(stream.content() for _ in range(stream.wanted)))
            return
        self.stream = stream
        self.transport.write(first)
        loop = asyncio.get_running_loop()
        self.queue_turn(loop, loop.time() + stream.pace_s)

    def queue_turn(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.timer = loop.call_at(due, self.turn, loop, due)

    def turn(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        assert self.stream is not None
        self.transport.write(self.stream.content())
        if self.stream.left:
            self.queue_turn(loop, due + self.stream.pace_s)
        else:
            self.stream = None
            self.data_received(b"")


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main(port: int) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run(serve(port))


if __name__ == "__main__":
    main(int(sys.argv[1]))
