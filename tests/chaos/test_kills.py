"""Random kills and freezes of every process under load: nothing hangs, nothing lies, nothing is lost or billed twice.

A run is drawn from a seed, which it prints; EVENFLOW_TEST_SEED repeats it, EVENFLOW_TEST_BLOWS sets how many there are.
"""

import asyncio
import json
import os
import random
import re
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.chaos.accounts import faults, must_have, rows, widest
from tests.chaos.blows import COMMANDS, SINGLE, Striker, belonging, quick, schedule, table
from tests.chaos.load import Load, outcomes
from tests.e2e.clients import PROVE, Metrics, Watcher, family, idle, watching
from tests.e2e.stack import LLAMA, Stack, running

BLOWS = os.environ.get("EVENFLOW_TEST_BLOWS", "")

pytestmark = pytest.mark.timeout(10_800 if PROVE or BLOWS else 300)

BACK_S = 5.0
"""Promised for the restart of a process, on top of what its model takes to load."""
BOOKED_S = 60.0
SEED = 20_260_101
WORKERS = ["w1", "w2"]


@dataclass(frozen=True)
class Subject:
    """What is hit, how hard it works meanwhile, and how many blows it gets at full count."""

    model: str
    settings: dict[str, str]
    clients: int
    most_tokens: int
    full: int

    @property
    def blows(self) -> int:
        """How many this time; a few, which are of every single kind once, unless we go looking for trouble."""
        return int(BLOWS or (self.full if PROVE else len(SINGLE)))


def each(**settings: str) -> dict[str, str]:
    """The same settings for both workers."""
    return {"WORKERS": "2"} | {f"WORKERS__{n}__{name}": value for n in range(2) for name, value in settings.items()}


SUBJECTS = {
    "null": Subject(
        "null",
        each(ENGINE="null", NULL_MODE="hash", NULL_PACED="true", NULL_RATE="60", NULL_TOKENS="1000", SLOTS="8"),
        clients=8,
        most_tokens=150,
        full=500,
    ),
    "llamacpp": Subject(LLAMA, each(SLOTS="2"), clients=4, most_tokens=40, full=50),
}


def seed() -> int:
    """The same in every run of the suite; a new one where we go looking for trouble."""
    return int(os.environ.get("EVENFLOW_TEST_SEED", random.SystemRandom().randrange(10**6) if PROVE else SEED))


@pytest.mark.parametrize("engine", SUBJECTS if PROVE or BLOWS else ["null"])
async def test_random_blows_under_load(tmp_path, engine: str) -> None:
    subject, drawn = SUBJECTS[engine], seed()
    print(f"\n{engine}: EVENFLOW_TEST_SEED={drawn} EVENFLOW_TEST_BLOWS={subject.blows}")
    with running(tmp_path, **subject.settings) as stack:
        load = Load(stack, subject.model, drawn, clients=subject.clients, most_tokens=subject.most_tokens)
        async with watching(stack) as watch:
            striker = Striker(stack, watch, load, WORKERS)
            await striker.full_strength()
            async with load.running():
                for blow in schedule(drawn, subject.blows):
                    hit = await striker.strike(blow)
                    print(f"  {blow.number:>3} {blow}: answer {hit.answer_s:.2f} s, back {hit.back_s:.2f} s after it")
            await watch.reach("idle", lambda seen: all(idle(seen, wid) for wid in WORKERS), within_s=60)
            booked_s, seen = await booked(stack, load, watch)
            budget = await standing(stack, watch)
        found = rows(stack)
        print(outcomes(load.asked), table(striker.hits), sep="\n")
        print(f"  booked {booked_s:.1f} s after all was idle: {Counter(one[0]['outcome'] for one in found.values())}")
        print(
            f"  of a lost gateway's streams, received and charged differ by at most {widest(load.asked, found)} tokens"
        )
        print(f"  complaints: {troubles(stack)}")
        wrong = await faults(load.asked, found, striker.outages(), exact=engine == "null")
        used = sum(row["prompt"] + row["charged"] for kept in found.values() for row in kept)
        assert (budget["used"], budget["held"]) == (used, 0), "quotas remember something else than the ledger"
        assert not wrong, "\n".join([f"{len(wrong)} faults, seed {drawn}", *wrong[:40]])
        assert not any(seen[name] for name in NEVER), {name: seen[name] for name in NEVER}
        accounted(stack)
        loaded_s = loading(stack) if engine != "null" else 0.0
    assert not belonging(stack), "processes outlived the stack"
    print(f"  95 of 100 were back within {quick(striker.hits):.2f} s, without what the supervisor waited on purpose")
    if PROVE:
        assert quick(striker.hits) <= BACK_S + loaded_s


NOTHING = ("evenflow_usage_open", "evenflow_usage_unconfirmed", "evenflow_ledger_open")
"""What is not there any more, once all is on record."""
NEVER = (*NOTHING, "evenflow_usage_dropped_total", "evenflow_ledger_lost_total")


async def booked(stack: Stack, load: Load, watch: Watcher) -> tuple[float, Metrics]:
    """Seconds until every request that a worker was asked for stands in the store and nothing is open, and the metrics.

    After BOOKED_S whatever there is: the accounts tell what is missing.
    """
    owed = {one.rid for one in load.asked if must_have(one)}
    began = time.monotonic()
    while True:
        seen, waited_s = await watch.metrics(), time.monotonic() - began
        if (not any(seen[name] for name in NOTHING) and owed <= rows(stack).keys()) or waited_s > BOOKED_S:
            return waited_s, seen
        await asyncio.sleep(0.1)


async def standing(stack: Stack, watch: Watcher) -> dict[str, int]:
    """The tenant's budget of the month, as the gateway that is there last has it after all restarts."""
    answer = await watch.http.get(f"{stack.url}/v1/usage", headers=stack.headers)
    budget: dict[str, int] = answer.json()["limits"][0]["monthly_tokens"]
    return budget


def accounted(stack: Stack) -> None:
    """One process for each role, each a child of `up`, and not one that is nobody's."""
    assert stack.process is not None
    for name, command in COMMANDS.items():
        assert len(stack.pids(command)) == 1, name
    ours = set(family(stack.process.pid))
    assert len(ours) == 1 + len(COMMANDS)
    assert belonging(stack) == ours


def troubles(stack: Stack) -> dict[str, int]:
    """What the gateways and workers complained of, how often; a line that is no JSON is a traceback."""
    found: Counter[str] = Counter()
    for path in (stack.directory / ".evenflow" / "log").glob("[gw]*.log"):
        for line in path.read_text().splitlines():
            said = json.loads(line) if line.startswith("{") else {"event": line[:80], "level": "error"}
            if said["level"] not in ("debug", "info") or "exception" in said:
                found[f"{said['level']} {said['event']}"] += 1
    return dict(found)


def loading(stack: Stack) -> float:
    """Seconds that the first start took, loading of the model included."""
    return float(re.findall(r"\(([\d.]+) s after the start\)", (stack.directory / "up.out").read_text())[0])
