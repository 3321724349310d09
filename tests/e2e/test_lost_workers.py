"""A worker that dies: what it had not begun waits for another one, or for its successor."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.stack import Stack, running


async def after_a_kill(stack: Stack, requests: int) -> list[int]:
    """Statuses of requests that are sent right after a worker was killed, before anybody can know."""
    async with httpx.AsyncClient(headers=stack.headers, timeout=40) as client:

        async def ask() -> int:
            body = {"model": "null", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
            return (await client.post(f"{stack.url}/v1/chat/completions", json=body)).status_code

        assert await ask() == 200
        os.kill(stack.pids("workers.cli")[0], signal.SIGKILL)
        return await asyncio.gather(*(ask() for _ in range(requests)))


@pytest.mark.parametrize("workers", [1, 2])
async def test_what_had_not_begun_is_served_all_the_same(tmp_path: Path, workers: int) -> None:
    engines = {f"WORKERS__{number}__ENGINE": "null" for number in range(workers)}
    with running(tmp_path, WORKERS=str(workers), **engines) as stack:
        for _ in range(2):
            assert await after_a_kill(stack, 8) == [200] * 8
        stack.settled()
