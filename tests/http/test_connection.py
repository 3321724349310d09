"""The bounds of a client connection, over a transport and a loop that only take notes."""

import asyncio
import contextlib
import socket
import sys

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.http import connection
from gateway.http.connection import Connection, Stalls

HEAD = b"POST /v1/x HTTP/1.1\r\nhost: x\r\n"
KEEPALIVE_S = 10


class Handle:
    def __init__(self, delay, callback):
        self.delay, self.callback, self.cancelled = delay, callback, False

    def cancel(self):
        self.cancelled = True


class Loop:
    """Keeps what was to run; nothing runs by itself."""

    def __init__(self):
        self.timers = []
        self.requests = []

    def call_later(self, delay, callback):
        self.timers.append(Handle(delay, callback))
        return self.timers[-1]

    def create_task(self, coroutine):
        coroutine.close()
        self.requests.append(coroutine)
        return asyncio.get_running_loop().create_future()

    @property
    def due(self):
        return [timer for timer in self.timers if not timer.cancelled]


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data):
        assert not self.closed
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


@pytest.fixture
async def client():
    """A connection with its transport and loop."""
    loop, transport = Loop(), Transport()

    async def app(scope, receive, send):
        raise AssertionError("no request is run here")

    config = Config(app, http=Connection, ws="none", lifespan="off", log_config=None, timeout_keep_alive=KEEPALIVE_S)
    config.load()
    made = Connection(config, ServerState(), {}, _loop=loop)
    made.connection_made(transport)
    return made, transport, loop


async def answer(made, body=b"no"):
    """What the application would send."""
    length = b"%d" % len(body)
    await made.cycle.send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", length)]})
    await made.cycle.send({"type": "http.response.body", "body": body})


async def test_a_head_without_end_is_refused(client):
    made, transport, loop = client
    made.data_received(HEAD + b"x-a: ")
    for _ in range(connection.HEAD_BYTES // 1024 - 1):
        made.data_received(b"a" * 1024)
    assert not transport.closed
    made.data_received(b"a" * 1024)
    assert transport.closed
    assert transport.written.startswith(b"HTTP/1.1 431 ")
    assert b"headers_too_large" in transport.written
    assert not loop.requests


async def test_trailers_without_end_are_refused(client):
    made, transport, _ = client
    made.data_received(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
    for number in range(connection.HEAD_BYTES // 1024 + 1):
        if not transport.closed:
            made.data_received(b"x-%d: " % number + b"a" * 1024 + b"\r\n")
    assert transport.written.startswith(b"HTTP/1.1 431 ")
    assert transport.closed
    assert made.cycle.disconnected


async def test_a_large_body_is_no_head_even_in_single_bytes(client):
    made, transport, loop = client
    made.data_received(HEAD + b"content-length: 300000\r\n\r\n" + b"a" * 200_000)
    made.data_received(b"a" * 100_000)
    await answer(made)
    made.data_received(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(100):
        made.data_received(b"1\r\na\r\n" * 1000)
    assert len(loop.requests) == 2
    assert not transport.closed


async def test_requests_pile_up_only_so_far(client):
    made, transport, loop = client
    request = b"GET /health HTTP/1.1\r\n\r\n"
    made.data_received(request * (1 + connection.PIPELINED))
    assert not transport.closed
    assert len(made.pipeline) == connection.PIPELINED
    made.data_received(request * 1000)
    assert transport.closed
    assert len(made.pipeline) == connection.PIPELINED
    assert transport.written == b""  # it would be taken for the answer to the first
    assert len(loop.requests) == 1


async def test_a_body_that_nobody_wants_is_read_only_so_far(client):
    made, transport, _ = client
    made.data_received(HEAD + b"content-length: 10000000000\r\n\r\n")
    await answer(made)
    said = transport.written
    made.data_received(b"a" * connection.UNWANTED_BYTES)
    assert not transport.closed
    made.data_received(b"a")
    assert transport.closed
    assert transport.written == said


async def test_the_rest_of_an_unwanted_body_that_ends_in_time_keeps_the_connection(client):
    made, transport, loop = client
    made.data_received(HEAD + b"content-length: 20\r\n\r\n0123456789")
    await answer(made)
    made.data_received(b"01234")
    assert [timer.delay for timer in loop.due] == [KEEPALIVE_S]
    made.data_received(b"56789")
    assert not loop.due
    made.data_received(HEAD + b"content-length: 0\r\n\r\n")
    assert len(loop.requests) == 2
    assert not transport.closed


async def test_a_slow_head_is_cut_off_whatever_it_sends_meanwhile(client):
    made, transport, loop = client
    (timer,) = loop.due
    assert timer.delay == KEEPALIVE_S
    made.data_received(HEAD)
    made.data_received(b"x-a: b\r\n")
    assert loop.due == [timer]
    timer.callback()
    assert transport.closed


async def test_a_slow_second_head_too(client):
    made, _, loop = client
    made.data_received(HEAD + b"content-length: 0\r\n\r\n")
    assert not loop.due
    await answer(made)
    made.data_received(b"PO")
    made.data_received(b"ST")
    assert len(loop.due) == 1
    made.connection_lost(None)
    assert not loop.due


async def test_what_is_not_http_is_refused_in_json(client):
    made, transport, _ = client
    made.data_received(b"\x16\x03\x01\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_http"' in transport.written
    assert transport.closed


async def test_nonsense_behind_a_running_answer_does_not_end_up_in_it(client):
    made, transport, _ = client
    made.data_received(HEAD + b"content-length: 0\r\n\r\n")
    await made.cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    said = transport.written
    made.data_received(b"\x00\x00\r\n\r\n")
    assert transport.closed
    assert transport.written == said
    assert (await made.cycle.receive())["type"] == "http.disconnect"


async def test_a_client_that_takes_nothing_is_given_up_and_a_slow_one_is_not(client, monkeypatch):
    made, transport, _ = client
    aborted, taken = [], [None, 5, 5, 6, 6, 6, None, 6, 6]
    transport.abort = lambda: aborted.append(True)
    monkeypatch.setattr(made, "taken", lambda: taken.pop(0))
    stalls = Stalls(30)
    for now in (0, 100, 129, 131, 150, 161):  # nothing waits; 5 from 100 to 129; 6 from 131 to 161
        stalls.look(now, {made})
    stalls.look(200, {made})  # nothing waits any more: it starts anew
    stalls.look(201, {made})
    assert not aborted
    stalls.look(232, {made})
    assert aborted
    stalls.look(233, set())
    assert stalls._marks == {}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a client's side has acknowledged")
async def test_what_a_client_has_taken_is_the_kernels_word():
    came = asyncio.get_running_loop().create_future()
    config = Config(lambda: None, http=Connection, ws="none", lifespan="off", log_config=None)
    config.load()

    class Seen(Connection):
        def connection_made(self, transport):
            super().connection_made(transport)
            came.set_result(self)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Seen(config, ServerState(), {}), "127.0.0.1", 0)
    peer = socket.create_connection(server.sockets[0].getsockname())
    async with asyncio.timeout(60):
        made = await came
        assert made.taken() is None
        made.transport.write(bytes(50_000_000))  # more than the two kernel buffers hold
        while (first := made.taken()) is None or first == 0:
            await asyncio.sleep(0.01)
        while (settled := made.taken()) != first:
            first = settled
            await asyncio.sleep(0.2)
        assert 0 < settled < 50_000_000
        peer.settimeout(0)
        while made.taken() == settled:
            with contextlib.suppress(BlockingIOError):
                peer.recv(1_000_000)
            await asyncio.sleep(0.01)
        assert made.taken() > settled
        made.transport.close()
        assert made.transport.is_closing()
        assert made.taken() is not None, "it cannot end: there is still something to send"
        made.abort()
        await asyncio.sleep(0)
    peer.close()
    server.close()
    await server.wait_closed()
