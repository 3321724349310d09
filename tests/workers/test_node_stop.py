"""The worker's shell comes to an orderly end, whatever its watch over the engine sees meanwhile."""

import asyncio

import pytest

from shared.settings import WorkerSettings
from workers import node as node_module
from workers.compose import spec_for
from workers.engines.null import NullEngine
from workers.node import EngineStalledError, Node


class Bus:
    """Nobody is there."""

    inbox = "_INBOX.w1.x"
    on_disconnect = on_reconnect = None

    async def subscribe(self, subject, handler):
        pass

    listen = subscribe

    async def barrier(self):
        pass

    async def publish(self, subject, data, reply=""):
        pass


class Slow(NullEngine):
    """Takes many turns of the loop to unload, and is not healthy meanwhile: as engines with a real library do."""

    unloaded = 0

    async def unload(self):
        await super().unload()
        for _ in range(100):
            await asyncio.sleep(0)
        self.unloaded += 1


@pytest.fixture
def node(monkeypatch):
    """A worker that looks at its engine in every turn of the loop."""
    monkeypatch.setattr(node_module, "_WATCH_S", 0)
    settings = WorkerSettings(engine="null")
    return Node(settings, spec_for(settings), Slow(), Bus())


async def ready(node):
    running = asyncio.create_task(node.run())
    while node.life.state != "ready" and not running.done():
        await asyncio.sleep(0)
    if running.done():
        running.result()  # it says why it is not ready
    return running


async def test_an_engine_that_is_being_unloaded_is_not_taken_for_a_dead_one(node):
    running = await ready(node)
    node.stopping.set()
    await running
    assert node.engine.unloaded


async def test_an_engine_that_dies_ends_the_process(node):
    running = await ready(node)
    node.engine._capabilities = None
    with pytest.raises(ExceptionGroup) as ended:
        await running
    assert ended.group_contains(EngineStalledError)
