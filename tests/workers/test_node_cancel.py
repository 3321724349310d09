"""A job whose cancel comes with it, before its task has made a step, leaves nothing behind in the worker."""

import asyncio

import pytest

from shared import subjects, wire
from shared.bus import Delivery
from shared.settings import WorkerSettings
from workers.compose import spec_for
from workers.engines.null import NullEngine
from workers.node import Node


class Bus:
    """Takes everything."""

    inbox = "_INBOX.w1.x"
    on_disconnect = on_reconnect = None

    async def publish(self, subject, data, *, reply="", headers=None):
        pass


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancel_that_comes_with_its_job_leaves_nothing(turns):
    settings = WorkerSettings(engine="null")
    node = Node(settings, spec_for(settings), NullEngine(), Bus())
    job = wire.Job(
        gep="g", sid=1, aid="r.0.0", tenant="t", model="null", version="1", kind="text", input="x", deadline_ms=60_000
    )  # fmt: skip
    reply = subjects.answer(subjects.inbox("g1", "g"), "w1", 1)
    await node._on_job(Delivery(subjects.job("w1", "g1"), wire.encode(job), reply, 0))
    assert len(node._runs) == 1
    for _ in range(turns):
        await asyncio.sleep(0)
    cancel = wire.Cancel(gep="g", sid=1, reason="client_left")
    await node._on_cancel(Delivery(subjects.cancel("w1", "g1"), wire.encode(cancel), "", 0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not node._runs
    assert not node._streams
