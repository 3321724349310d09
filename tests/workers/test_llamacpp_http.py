"""The loopback client against a server made of bytes: pieces, errors, ends that come too early."""

import asyncio

import pytest

from workers.engines.llamacpp_http import Address, Completion, ServerError, call, hung_up

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


class Scripted:
    """Answers each connection with the same pieces; keeps what it was asked, and whether the client hung up."""

    def __init__(self, *pieces, hold=False):
        self.pieces, self.hold = pieces, hold
        self.asked = b""
        self.hung_up = asyncio.Event()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self, Address("127.0.0.1", self.server.sockets[0].getsockname()[1], "secret")

    async def __aexit__(self, *_):
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader, writer):
        self.asked = await reader.readuntil(b"\r\n\r\n")
        for piece in self.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if self.hold:
            try:
                while await reader.read(1000):
                    pass
            except ConnectionError:
                pass
            self.hung_up.set()
        writer.close()


async def read_all(stream):
    chunks = []
    while (chunk := await stream.read()) is not None:
        chunks.append(chunk)
    return chunks


STREAM = HEAD + chunked(
    b'data: {"content":"a","tokens":[1],"stop":false,"tokens_predicted":1}\n\n',
    b'data: {"content":"b","tokens":[2],"sto',
    b'p":false,"tokens_predicted":2}\n\n: ping\n\ndata: {"content":"","tokens":[],"stop":true,"stop_type":"limit"}\n\n',
    b"",
)


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
async def test_chunks_are_the_same_however_the_bytes_arrive(size):
    pieces = [STREAM[n : n + size] for n in range(0, len(STREAM), size)]
    async with Scripted(*pieces) as (server, address):
        stream = await Completion.open(address, {"prompt": [1]})
        chunks = await read_all(stream)
    assert [(chunk.content, chunk.tokens, chunk.stop) for chunk in chunks] == [("a", [1], False), ("b", [2], False), ("", [], True)]  # fmt: skip
    assert b"Authorization: Bearer secret" in server.asked
    await stream.closed


@pytest.mark.parametrize("cut", [0, len(HEAD) - 10, len(HEAD), len(HEAD) + 60])
async def test_an_early_end_is_an_error_not_an_end(cut):
    async with Scripted(STREAM[:cut]) as (_, address):
        stream = await Completion.open(address, {})
        with pytest.raises(ServerError):
            await asyncio.wait_for(read_all(stream), 5)
        await stream.closed


@pytest.mark.parametrize(
    "garbage",
    [b"SSH-2.0-hello\r\n", HEAD + chunked(b"data: {not json}\n\n"), HEAD + chunked(b'data: {"content":5}\n\n'), HEAD + b"zz\r\n"],
)  # fmt: skip
async def test_garbage_is_an_error(garbage):
    async with Scripted(garbage) as (_, address):
        stream = await Completion.open(address, {})
        with pytest.raises(ServerError):
            await asyncio.wait_for(read_all(stream), 5)


async def test_an_error_in_the_stream_is_raised():
    async with Scripted(HEAD + chunked(b'error: {"code":500,"message":"boom","type":"server_error"}\n\n', b"")) as (
        _,
        address,
    ):
        stream = await Completion.open(address, {})
        with pytest.raises(ServerError, match="boom") as caught:
            await read_all(stream)
        assert caught.value.status == 500


async def test_a_refusal_carries_the_servers_words():
    body = b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}'
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with Scripted(answer) as (_, address):
        stream = await Completion.open(address, {})
        with pytest.raises(ServerError, match="too long") as caught:
            await read_all(stream)
        assert (caught.value.status, caught.value.kind) == (400, "exceed_context_size_error")
        with pytest.raises(ServerError, match="too long"):
            await call(address, "/tokenize", {})


async def test_an_interrupt_closes_the_connection_at_once_and_wakes_the_reader():
    first = STREAM[: len(HEAD) + 80]
    async with Scripted(first, hold=True) as (server, address):
        stream = await Completion.open(address, {})
        assert (await stream.read()).content == "a"
        reader = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        stream.interrupt()
        assert await asyncio.wait_for(reader, 5) is None
        await asyncio.wait_for(server.hung_up.wait(), 5)
        await asyncio.wait_for(stream.closed, 5)
        assert await stream.read() is None


async def test_a_call_returns_json():
    async with Scripted(b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"tokens":[1]}') as (server, address):
        assert await call(address, "/tokenize", {"content": "x"}) == {"tokens": [1]}
        assert server.asked.startswith(b"POST /tokenize HTTP/1.1\r\n")
        assert await call(address, "/props") == {"tokens": [1]}
        assert server.asked.startswith(b"GET /props HTTP/1.1\r\n")


async def test_nobody_there():
    async with Scripted() as (_, address):
        pass
    with pytest.raises(ConnectionRefusedError):
        await call(address, "/props")


async def test_who_wants_to_end_the_server_can_wait_until_nobody_holds_a_connection():
    async with Scripted(HEAD, hold=True) as (server, address):
        await hung_up(address, 60)
        stream = await Completion.open(address, {"prompt": [1]})
        with pytest.raises(TimeoutError):
            await hung_up(address, 0.02)
        ending = asyncio.create_task(hung_up(address, 60))
        stream.interrupt()
        await ending
        assert stream._transport.get_extra_info("socket").fileno() == -1, "the socket is closed, not only given up"
        await asyncio.wait_for(server.hung_up.wait(), 60)


async def test_a_connection_that_cannot_be_made_leaves_nothing_to_wait_for():
    async with Scripted() as (_, address):
        pass
    with pytest.raises(OSError, match="Connect"):
        await Completion.open(address, {})
    with pytest.raises(OSError, match="Connect"):
        await call(address, "/health")
    await hung_up(address, 0.02)
