"""Clients that send half a body: each costs only itself, and is told so in time."""

import select
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.stack import Stack, running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("stack"), WORKERS__0__ENGINE="null", LIMITS__BODY_READ_S="6") as stack:
        yield stack


def test_thirty_stalled_bodies_block_nobody_and_end_as_408(stack: Stack) -> None:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {stack.key}\r\nContent-Length: 1000\r\n\r\n" + '{"model":'
    )
    stalled = [socket.create_connection(("127.0.0.1", stack.port), 10) for _ in range(30)]
    try:
        for one in stalled:
            one.sendall(head.encode())
        answer = httpx.post(
            f"{stack.url}/v1/chat/completions",
            json={"model": "null", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
            headers=stack.headers,
            timeout=20,
        )
        assert answer.status_code == 200
        readable, _, _ = select.select(stalled, [], [], 0)
        assert not readable, "a good request had to wait for the stalled ones to give up"
        for one in stalled:
            response = b""
            while not response.endswith(b"}}") and (more := one.recv(4096)):
                response += more
            assert response.startswith(b"HTTP/1.1 408 ")
            assert b'"request_timeout"' in response
    finally:
        for one in stalled:
            one.close()
    assert stack.settled()["evenflow_requests_in_flight"] == 0
