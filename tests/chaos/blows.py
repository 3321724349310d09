"""Random blows against the processes of a stack, drawn from a seed: kills, freezes, and two at a time."""

import asyncio
import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.chaos.load import WHOLE, Load
from tests.e2e.clients import Watcher, eventually
from tests.e2e.stack import Stack

BACK_S = 60.0
"""Longest time to full strength; a busy machine may need all of it."""
COMMANDS = {
    "nats": "nats-server",
    "gateway": "gateway.cli gateway",
    "w1": "workers.cli serve --name w1",
    "w2": "workers.cli serve --name w2",
}
SINGLE = ["kill worker", "kill gateway", "kill nats", "freeze worker", "freeze gateway", "freeze nats"]
DOUBLE = [
    "kill worker, kill gateway",
    "kill gateway, kill nats",
    "kill nats, kill gateway",
    "kill nats, kill worker",
    "kill w1, kill w2",
    "kill nats, kill gateway, kill w1, kill w2",
    "freeze w1, freeze w2",
    "freeze worker, freeze gateway",
    "freeze nats, freeze worker",
    "freeze gateway, kill nats",
    "freeze worker, kill gateway",
    # Whoever is hit twice is hit again in its next life, as soon as that begins.
    "kill gateway, kill gateway",
    "kill w1, kill w1",
    "kill nats, kill nats",
    "kill nats, freeze nats",
]


@dataclass(frozen=True)
class Blow:
    """`hits` (how, whom) come `apart_s` after one another, after `pause_s` of undisturbed load; freezes last `hold_s`."""

    number: int
    hits: tuple[tuple[str, str], ...]
    pause_s: float
    apart_s: float
    hold_s: float

    @property
    def kind(self) -> str:
        """What it does, for a table."""
        return ", ".join(f"{how} {name}" for how, name in self.hits)

    def __str__(self) -> str:
        return f"{self.kind} ({self.hold_s:.1f} s)" if "freeze" in self.kind else self.kind


@dataclass
class Hit:
    """A blow that was dealt: when, when it was over (a freeze is, when it thaws), and seconds from then until service.

    `answer_s` until the first whole answer to what was asked after that, `back_s` until everybody is there again, of
    which the supervisor waited `held_back_s` on purpose.
    """

    blow: Blow
    at: float
    over: float
    answer_s: float = 0.0
    back_s: float = 0.0
    held_back_s: float = 0.0


def schedule(seed: int, count: int) -> Iterator[Blow]:
    """`count` blows. The first ones are of every single kind once; long freezes and double blows come later."""
    chance = random.Random(seed)
    deck = chance.sample(SINGLE, len(SINGLE))
    for number in range(count):
        early = number < len(SINGLE)
        if not deck:
            deck = chance.sample(SINGLE * 2 + DOUBLE, 2 * len(SINGLE) + len(DOUBLE))
        names = {"worker": chance.choice(["w1", "w2"])}
        hits = [hit.split() for hit in deck.pop().split(", ")]
        yield Blow(
            number,
            tuple((how, names.get(name, name)) for how, name in hits),
            pause_s=chance.uniform(0.2, 1.5),
            apart_s=chance.choice([0.0, 0.05, 0.2, 0.6]),
            hold_s=chance.uniform(0.2, 1.0 if early else chance.choice([1.0, 4.0, 8.0, 13.0])),
        )


class Striker:
    """Deals blows, and waits after each until all is well again."""

    def __init__(self, stack: Stack, watch: Watcher, load: Load, workers: list[str]) -> None:
        self.hits: list[Hit] = []
        self._stack = stack
        self._watch = watch
        self._load = load
        self._workers = workers

    async def full_strength(self) -> None:
        """Wait until everybody is there."""
        await eventually(lambda: self._whole(set(), {}), "full strength", BACK_S)

    def pid(self, name: str) -> int | None:
        """The process of that role, if there is exactly one."""
        found = self._stack.pids(COMMANDS[name])
        return found[0] if len(found) == 1 else None

    def outages(self) -> list[tuple[float, float]]:
        """From each death of a gateway until full strength."""
        dead = (hit for hit in self.hits if ("kill", "gateway") in hit.blow.hits)
        return [(hit.at, hit.over + hit.back_s) for hit in dead]

    async def strike(self, blow: Blow) -> Hit:
        """Deal it; returns once everybody is back and an answer is whole."""
        await asyncio.sleep(blow.pause_s)
        said = len(self._said())
        hit = Hit(blow, time.monotonic(), 0.0)
        dead, reborn = await self._deal(blow)
        hit.over = time.monotonic()
        await eventually(lambda: self._whole(dead, reborn), f"full strength after {blow}", BACK_S)
        hit.back_s = time.monotonic() - hit.over
        while not (since := [one for one in self._load.asked if one.at >= hit.over and one.end == WHOLE]):
            assert time.monotonic() < hit.over + BACK_S, f"no answer after {blow}"
            await asyncio.sleep(0.05)
        hit.answer_s = min(one.ended_at for one in since) - hit.over
        hit.held_back_s = _held_back(self._said()[said:])
        self.hits.append(hit)
        return hit

    async def _deal(self, blow: Blow) -> tuple[set[int], dict[str, int]]:
        """Returns who is dead now, and how often each killed worker must have been ready to be so again."""
        dead: set[int] = set()
        frozen: list[int] = []
        reborn: dict[str, int] = {}
        try:
            for number, (how, name) in enumerate(blow.hits):
                if number:
                    await asyncio.sleep(blow.apart_s)
                await eventually(lambda name=name: self._runs(name, dead), f"a process of {name}", BACK_S)
                pid = self.pid(name)
                assert pid is not None
                if how == "freeze":
                    frozen.append(pid)
                else:
                    dead.add(pid)
                    reborn |= {name: self._lives(name) + 1} if name in self._workers else {}
                os.kill(pid, signal.SIGSTOP if how == "freeze" else signal.SIGKILL)
            if frozen:
                await asyncio.sleep(blow.hold_s)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        return dead, reborn

    async def _runs(self, name: str, dead: set[int]) -> bool:
        return self.pid(name) not in (None, *dead)

    async def _whole(self, dead: set[int], reborn: dict[str, int]) -> bool:
        """Everybody runs, in a life that began after the blow, and the gateway sends to every worker."""
        await asyncio.sleep(0.05)
        if any(self._lives(name) < lives for name, lives in reborn.items()):
            return False
        pids = [self.pid(name) for name in ("nats", "gateway", *self._workers)]
        if None in pids or dead.intersection(pids):
            return False
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._watch.http.get(f"{self._stack.admin}/ready")
            states = {worker["name"]: worker["state"] for worker in answer.json()["workers"]}
            return answer.status_code == 200 and all(states.get(name) == "ready" for name in self._workers)
        return False

    def _lives(self, name: str) -> int:
        """How often that worker has loaded its model."""
        return (self._stack.directory / ".evenflow" / "log" / f"worker-{name}.log").read_text().count('"worker_ready"')

    def _said(self) -> str:
        return (self._stack.directory / "up.out").read_text()


def table(hits: list[Hit]) -> str:
    """Seconds from the end of a blow until the first answer, and until full strength, for a person."""
    lines = [f"  {'blow':<34} {'n':>4} {'answer p50':>11} {'max':>6} {'back p50':>9} {'p95':>6} {'max':>6}"]
    kinds: dict[str, list[Hit]] = {}
    for hit in hits:
        kinds.setdefault(hit.blow.kind, []).append(hit)
    for kind, these in [*sorted(kinds.items()), ("all", hits)]:
        answer, back = sorted(hit.answer_s for hit in these), sorted(hit.back_s for hit in these)
        lines.append(
            f"  {kind:<34} {len(these):>4} {_at(answer, 0.5):>11.2f} {answer[-1]:>6.2f}"
            f" {_at(back, 0.5):>9.2f} {_at(back, 0.95):>6.2f} {back[-1]:>6.2f}"
        )
    return "\n".join(lines)


def quick(hits: list[Hit]) -> float:
    """95 of 100 were back within so many seconds, not counting what the supervisor waited on purpose."""
    return _at(sorted(hit.back_s - hit.held_back_s for hit in hits), 0.95)


def belonging(stack: Stack) -> set[int]:
    """All living processes that were started by or below this stack, whoever their parent is now."""
    mark = f"EVENFLOW_GATEWAY__PORT={stack.port}\0".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def _held_back(said: str) -> float:
    """Seconds that the supervisor waited on purpose, for whom it waited longest."""
    waits: Counter[str] = Counter()
    for name, wait_s in re.findall(r"^(\S+) .*; starting again in ([\d.]+) s", said, re.MULTILINE):
        waits[name] += float(wait_s)
    return max(waits.values(), default=0.0)


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]
