"""What the tests of real processes share."""

import asyncio
import time

import pytest


@pytest.fixture
def eventually():
    """Return a coroutine function that waits until `condition()` is true, and gives back its value."""

    async def wait(condition, within_s=20.0):
        deadline = time.monotonic() + within_s
        while not (value := condition()):
            assert time.monotonic() < deadline, "did not happen in time"
            await asyncio.sleep(0.01)
        return value

    return wait
