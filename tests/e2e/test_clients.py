"""The clients of these tests hold nothing that they do not give back."""

import asyncio
import contextlib
import gc
import socket
from types import SimpleNamespace

from tests.e2e.clients import Call


async def test_a_client_cancelled_while_it_connects_leaves_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for turns in range(6):
            connecting = asyncio.ensure_future(Call.connect(SimpleNamespace(port=server.getsockname()[1])))
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await connecting).drop()
                Call.all.pop()
    await asyncio.sleep(0)
    gc.collect()  # a socket that nobody closed is a warning, and so an error
