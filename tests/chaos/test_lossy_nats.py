"""Bad weather on a real bus: messages lost, late, doubled, overtaken, connections cut; every stream ends once, and right.

A weather is drawn from its seed: EVENFLOW_TEST_SEED runs that one alone, EVENFLOW_TEST_STREAMS says with how many
streams.
"""

import asyncio
import os
import random
from collections import Counter

import pytest

from tests.chaos.accounts import faults, must_have, rows
from tests.chaos.load import WHOLE, Load, outcomes
from tests.chaos.lossy_proxy import Weather
from tests.chaos.lossy_stack import LossyStack, lossy
from tests.e2e.clients import PROVE, Call, Watcher, chat, eventually, idle, watching

SEEDS = (
    [int(os.environ["EVENFLOW_TEST_SEED"])]
    if "EVENFLOW_TEST_SEED" in os.environ
    else list(range(1, 101))
    if PROVE
    else [3, 5, 9]
)
STREAMS = int(os.environ.get("EVENFLOW_TEST_STREAMS", "50" if PROVE else "20"))
MOST_TOKENS = 80
LEAVERS = 3
ALONE = 4
"""Of the streams, those that come when the rest is over: what is lost of them at the end, no later frame betrays."""

pytestmark = [
    pytest.mark.timeout(150 + 60 * len(SEEDS)),
    pytest.mark.filterwarnings("ignore:.*deprecated inferred style"),
]


async def test_every_stream_ends_once_and_right_in_bad_weather(tmp_path) -> None:
    wrong: list[str] = []
    total: Counter[str] = Counter()
    for seed in SEEDS:
        home = tmp_path / str(seed)
        home.mkdir()
        async with lossy(home) as stack, watching(stack) as watch:
            load = await one_weather(stack, seed)
            faulty = [f"weather {seed}: {what}" for what in await aftermath(stack, watch, load)]
            seen = counted(stack)
            print(f"\n{Weather.drawn(seed)}\n{outcomes(load.asked)}\n  {dict(seen)}", *faulty, sep="\n")
            wrong += faulty
            total += seen
            total["whole"] += sum(one.end == WHOLE for one in load.asked)
    assert not wrong, "\n".join([f"{len(wrong)} faults", *wrong[:40]])
    assert total["whole"] >= len(SEEDS) * STREAMS / 2, "that was no weather but a flood"
    if "EVENFLOW_TEST_SEED" not in os.environ:
        # Whether the very last frame of a crowd is among the lost is the machine's doing: many weathers are sure of it.
        happens = ("lost", "twice", "late", "cuts", "replayed", *(("tails",) if PROVE else ()))
        assert all(total[what] for what in happens), f"it was a fine day: {total}"


async def one_weather(stack: LossyStack, seed: int) -> Load:
    """All streams through it, to their ends; clients who leave, too. Then it clears up."""
    load, dice = Load(stack, "null", seed, 0, 0), random.Random(seed)
    stack.weather(Weather.drawn(seed))

    async def stay(begin_s: float, tokens: int, *, stream: bool) -> None:
        await asyncio.sleep(begin_s)
        await load.ask(tokens, stream=stream)

    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS - ALONE):
            work = stay(dice.uniform(0.0, 1.0), dice.randint(1, MOST_TOKENS), stream=dice.random() < 0.8)
            group.create_task(work)
        for _ in range(LEAVERS):
            group.create_task(leave(stack, dice.uniform(0.0, 1.0), dice.uniform(0.0, 0.5)))
    for _ in range(ALONE):
        await load.ask(dice.randint(1, 20), stream=True)
    stack.weather(None)
    return load


async def leave(stack: LossyStack, begin_s: float, after_s: float) -> None:
    """A client that does not stay to the end."""
    await asyncio.sleep(begin_s)
    call = await Call.post(stack, chat("leaving", model="null", max_tokens=1000))
    await asyncio.sleep(after_s)
    call.drop(reset=True)


async def aftermath(stack: LossyStack, watch: Watcher, load: Load) -> list[str]:
    """Everything that is not as promised: answers, bills, and what is still held when all is over."""
    owed = {one.rid for one in load.asked if must_have(one)}

    async def quiet() -> bool:
        return not stack.leftovers() and idle(await watch.metrics()) and owed <= rows(stack).keys()

    told = []
    try:
        await eventually(quiet, "all given back and booked")
    except AssertionError as late:
        told = [f"{late}: {stack.leftovers()}", *(f"{rid} is in no book" for rid in owed - rows(stack).keys())]
    asked = {one.rid for one in load.asked}
    return told + await faults(
        load.asked, {rid: row for rid, row in rows(stack).items() if rid in asked}, [], exact=True
    )


def counted(stack: LossyStack) -> Counter[str]:
    """What the weather did, and what the protocol did about it."""
    gateway, worker = stack.house.streams.end.counters, stack.node.end.counters
    return stack.done + Counter(
        replayed=worker.replays, tails=stack.tails, holes=gateway.holes, resumes=gateway.resumes,
        resent=gateway.jobs_resent, doubles=gateway.duplicates_dropped + gateway.frames_duplicate,
        cancels=gateway.cancels, tombs=worker.tombstone_refusals, lease=worker.lease_aborts, orphans=worker.orphans,
    )  # fmt: skip
