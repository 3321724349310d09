"""The null engine's timer on the loop that workers run on."""

import asyncio

import uvloop

from workers.engines.null import _Wheel
from workers.engines.tickets import Ticket


def test_late_wishes_are_served_on_uvloop():
    """A worker whose loop was late asks for times that have passed; such a handle of uvloop's has no `when`."""

    async def run() -> list[bool]:
        wheel, now = _Wheel(), asyncio.get_running_loop().time()
        wishes = [wheel.until(now - late, Ticket(str(late), now)) for late in (1.0, 2.0, 0.5, 3.0)]
        async with asyncio.timeout(30):
            return await asyncio.gather(*wishes)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == [True] * 4
