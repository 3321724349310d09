"""Many streaming clients in a process of their own, that read, stop reading, and read on, all as they are told.

Run as a script it speaks JSON lines. In: one `Plan`, then orders. `stop` takes nothing out of any socket any more;
`finish K` has the first K clients read to the end of what they get. Out: `{"streaming": N}` once all N clients have had
text; after an order, what became of it.

The sockets are as small as those of clients behind an Ethernet and a tight window: the kernel's own buffers, several
megabytes for each connection of a loopback, would otherwise take in whole answers for clients that read none of them.
"""

import contextlib
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any

from tests.e2e.stack import ROOT

MSS_BYTES = 1448
WINDOW_BYTES = 8192
RID_CHARS = 128
"""Request ids as long as they may be: they are in every chunk, and so fewer chunks fill a socket."""
PATIENCE_S = 240.0
_TAIL_BYTES = 8192
_PIECE_BYTES = 1 << 16
_AT_ONCE = 20


@dataclass(frozen=True)
class Plan:
    """So many clients that ask for the same; without `reading` each stops by itself at its first text."""

    port: int
    key: str
    count: int
    body: dict[str, Any]
    reading: bool = True


class _Client:
    def __init__(self, plan: Plan) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", plan.port))
        payload = json.dumps(plan.body).encode()
        self.socket.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: evenflow\r\nauthorization: Bearer {plan.key}\r\n"
            f"x-request-id: {secrets.token_hex(RID_CHARS // 2)}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(payload)}\r\nconnection: close\r\n\r\n".encode()
            + payload
        )
        self.socket.settimeout(0)
        self.began = False
        self.ended = False
        self.tail = b""

    def read(self) -> None:
        """One piece, or the end."""
        try:
            piece = self.socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            piece = b""
        self.ended = not piece
        if not self.began and not (self.tail + piece).startswith(b"HTTP/1.1 200"[: len(self.tail + piece)]):
            raise AssertionError((self.tail + piece).decode(errors="replace"))
        self.tail = (self.tail + piece)[-_TAIL_BYTES:]
        self.began = self.began or b'"content":' in self.tail

    @property
    def end(self) -> str:
        """How the stream ended: `done`, the code of its error event, or `cut`."""
        if b"data: [DONE]" in self.tail:
            return "done"
        _, found, rest = self.tail.rpartition(b'"code":"')
        return rest.partition(b'"')[0].decode() if found and b'"error":' in self.tail else "cut"


def _serve() -> None:
    plan = Plan(**json.loads(sys.stdin.buffer.readline()))
    clients: list[_Client] = []
    with selectors.DefaultSelector() as waiting:
        while len(clients) < plan.count:
            for client in (fresh := [_Client(plan) for _ in range(min(_AT_ONCE, plan.count - len(clients)))]):
                waiting.register(client.socket, selectors.EVENT_READ, client)
            clients += fresh
            _read_until(waiting, lambda fresh=fresh: all(client.began for client in fresh), until_text=not plan.reading)
        print(json.dumps({"streaming": len(clients)}), flush=True)
        waiting.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while _read_until(waiting, lambda: False):
            order, *rest = sys.stdin.buffer.readline().split()
            if order == b"finish":
                said = {"ends": _finish(clients[: int(rest[0])])}
            else:
                going = [client for client in clients if not client.ended]
                for client in going:
                    waiting.unregister(client.socket)
                said = {"open": len(going)}
            print(json.dumps(said), flush=True)


def _read_until(waiting: selectors.BaseSelector, enough: Callable[[], bool], *, until_text: bool = False) -> bool:
    """Read from whoever is registered, if so only up to its first text; True when an order has come, False if `enough`."""
    until = time.monotonic() + PATIENCE_S
    while not enough():
        if time.monotonic() > until:
            raise TimeoutError("nothing happened for a long time")
        for key, _ in waiting.select(1.0):
            if key.data is None:
                return True
            key.data.read()
            if key.data.ended or (until_text and key.data.began):
                waiting.unregister(key.fileobj)
    return False


def _finish(clients: list[_Client]) -> dict[str, int]:
    with selectors.DefaultSelector() as waiting:
        for client in clients:
            if not client.ended:
                waiting.register(client.socket, selectors.EVENT_READ, client)
        _read_until(waiting, lambda: all(client.ended for client in clients))
    return Counter(client.end for client in clients)


class Crowd:
    """The other end of the pipe."""

    def __init__(self, orders: IO[bytes], answers: IO[bytes]) -> None:
        self._orders = orders
        self._answers = answers

    def wait(self) -> int:
        """Until all are streaming; returns how many."""
        return self._answer()["streaming"]

    def stop(self) -> int:
        """None of them reads from now on; returns how many had not ended by then."""
        return self._ask("stop")["open"]

    def finish(self, count: int) -> dict[str, int]:
        """After `stop`, let the first `count` read to the end; returns how many ended in which way."""
        return self._ask(f"finish {count}")["ends"]

    def _ask(self, order: str) -> dict[str, Any]:
        self._orders.write(f"{order}\n".encode())
        self._orders.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        assert line, "the clients' process has ended: its error is above"
        return json.loads(line)


@contextlib.contextmanager
def crowd(plan: Plan) -> Iterator[Crowd]:
    """Start the clients; they are gone, their sockets with them, when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.crowd"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(asdict(plan)).encode() + b"\n")
        process.stdin.flush()
        yield Crowd(process.stdin, process.stdout)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


if __name__ == "__main__":
    _serve()
