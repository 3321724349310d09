"""A worker that dies: what it had not begun goes elsewhere, and nobody is sent to it any more."""

import asyncio
import os
import signal
from pathlib import Path

import httpx

from tests.e2e.stack import running


async def test_requests_that_had_not_begun_are_served_by_another_worker(tmp_path: Path) -> None:
    with running(tmp_path, WORKERS="2", WORKERS__0__ENGINE="null", WORKERS__1__ENGINE="null") as stack:
        async with httpx.AsyncClient(headers=stack.headers, timeout=30) as client:

            async def ask() -> int:
                body = {"model": "null", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
                return (await client.post(f"{stack.url}/v1/chat/completions", json=body)).status_code

            assert await ask() == 200
            victim = stack.pids("workers.cli")[0]
            os.kill(victim, signal.SIGKILL)
            # Both have room and nobody knows yet: half of these are sent to the dead one.
            assert await asyncio.gather(*(ask() for _ in range(8))) == [200] * 8
        seen = stack.settled()
        assert seen['evenflow_requests_total{gen_ai_request_model="null",outcome="ok"}'] == 9
