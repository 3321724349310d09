"""The load client counts the same, wherever a server cuts its bytes."""

import asyncio

import pytest

from infra.bench.connection import Connection
from infra.bench.load import percentile


class Transport:
    """Takes what is written; remembers whether it was closed."""

    def __init__(self):
        self.closed = False

    def write(self, data):
        pass

    def close(self):
        self.closed = True


def event(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text.encode()


EVENTS = event("") + event("a") + event("@7@ ") + b'data: {"choices":[{"delta":{"content": "spaced"}}]}\n\n'
BODY = EVENTS + b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(
    b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in (BODY[:30], BODY[30:31], BODY[31:])
) + b"0\r\n\r\n"  # fmt: skip
LENGTH = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
TO_THE_END = HEAD + b"connection: close\r\n\r\n" + BODY


async def read(pieces: list[bytes], *, then_closed: bool = False) -> tuple[Connection, int, bytes]:
    connection = Connection()
    connection.connection_made(Transport())
    answer = connection.ask(b"", [])
    for piece in pieces:
        connection.data_received(piece)
    if then_closed:
        connection.connection_lost(None)
    status, body = await asyncio.wait_for(answer, 5)
    return connection, status, body


@pytest.mark.parametrize("answer", [CHUNKED, LENGTH], ids=["chunked", "length"])
async def test_content_is_counted_wherever_the_bytes_are_cut(answer):
    for at in range(1, len(answer)):
        connection, status, body = await read([answer[:at], answer[at:]])
        assert (status, body, connection.chunks, len(connection.stamps)) == (200, BODY, 3, 1), at
        assert connection.first > 0


async def test_a_body_may_end_with_its_connection():
    connection, status, body = await read([TO_THE_END[:50], TO_THE_END[50:]], then_closed=True)
    assert (status, body, connection.chunks, connection.closed) == (200, BODY, 3, True)


async def test_a_connection_that_the_server_will_close_is_not_used_again():
    answer = HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"
    connection, _, body = await read([answer])
    assert (body, connection.closed, connection.transport.closed) == (b"{}", True, True)


async def test_a_server_that_hangs_up_is_an_error():
    with pytest.raises(ConnectionError):
        await read([CHUNKED[:-5]], then_closed=True)


def test_percentiles():
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([], 50)) == (51.0, 100.0, None)
