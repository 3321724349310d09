"""Bytes on their way to the client without a task's turn: uvicorn's own send, driven by hand while it need not wait."""

import asyncio

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.http.connection import Connection
from gateway.http.stream import AsgiExchange


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.written = b""

    def write(self, data):
        self.written += data

    def close(self):
        pass

    def is_closing(self):
        return False

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


@pytest.fixture
async def served():
    """A request in the middle of its answer: its exchange, its connection, its transport; `end` ends it."""
    exchanges, end = asyncio.Queue(), asyncio.Event()

    async def app(scope, receive, send):
        exchange = AsgiExchange(scope, receive, send)
        await exchange.start(200, [])
        await exchanges.put(exchange)
        await end.wait()
        await exchange.finish(b"last")

    config = Config(app, http=Connection, ws="none", lifespan="off", log_config=None)
    config.load()
    connection, transport = Connection(config, ServerState(), {}, _loop=asyncio.get_running_loop()), Transport()
    connection.connection_made(transport)
    connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(10):
        exchange = await exchanges.get()
        yield exchange, connection, transport
        end.set()
        while not transport.written.endswith(b"0\r\n\r\n"):
            await asyncio.sleep(0)
    connection.connection_lost(None)


async def test_it_is_written_at_once_and_framed_like_all_the_rest(served):
    exchange, _, transport = served
    assert exchange.writable
    exchange.send_now(b"now")
    exchange.send_now(b"again")
    assert transport.written.endswith(b"\r\n\r\n3\r\nnow\r\n5\r\nagain\r\n")


async def test_a_full_socket_is_not_written_to(served):
    exchange, connection, transport = served
    connection.pause_writing()
    before = transport.written
    assert not exchange.writable
    with pytest.raises(RuntimeError, match="waits"):
        exchange.send_now(b"lost")  # the control: without the look before, it would be lost
    assert transport.written == before
    connection.resume_writing()
    assert exchange.writable


async def test_a_client_that_left_is_written_to_in_vain(served):
    exchange, connection, transport = served
    connection.connection_lost(None)
    before = transport.written
    exchange.send_now(b"late")
    assert transport.written == before
    transport.written += b"0\r\n\r\n"  # what the end of the request waits for


async def test_a_server_that_does_not_tell_gets_no_straight_writes():
    async def nothing(_message):
        raise AssertionError("not sent")

    scope = {"type": "http", "headers": [], "client": ("127.0.0.1", 1)}
    assert not AsgiExchange(scope, nothing, nothing).writable
