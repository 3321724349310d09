"""Keeps a family of processes alive, and ends it in order.

Children are started in the order in which they need each other and stopped in the reverse one, group by group. One
that dies is started again by `gateway.core.restarts`; one that says it can never run (exit status 78) is left, and
when nobody is left in its group the whole family is of no use: `failed` is set and the owner stops it.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from gateway.core.restarts import GiveUp, Restarts, died, started
from gateway.up.process import ChildSpec, Output, forget, remember, spawn

Report = Callable[[str], None]

HURRY_S = 2.0
"""What is left of every grace, in seconds, after a second signal."""


class Child:
    """One supervised process and what is known of it."""

    def __init__(self, spec: ChildSpec, logs: Path) -> None:
        self.spec = spec
        self.output = Output(logs, spec.name)
        self.restarts = Restarts()
        self.process: asyncio.subprocess.Process | None = None
        self.stop = asyncio.Event()
        self.given_up = False
        self.task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        alive = self.process is not None and self.process.returncode is None
        return self.process.pid if alive and self.process else None

    def send(self, signal_: signal.Signals) -> None:
        """Signal the process, if it runs."""
        if self.pid is not None and self.process is not None:
            self.process.send_signal(signal_)

    def kill(self) -> None:
        """End the process and all that it started: it leads a process group of its own."""
        if self.pid is not None:
            os.killpg(self.pid, signal.SIGKILL)


class Supervisor:
    """The parent. `logs` and `records` are existing directories; `report` takes one line for a person."""

    def __init__(self, *, logs: Path, records: Path, report: Report) -> None:
        self._logs = logs
        self._records = records
        self._report = report
        self._groups: dict[str, list[Child]] = {}
        self._hurry = asyncio.Event()
        self.failed: asyncio.Event = asyncio.Event()

    @property
    def children(self) -> dict[str, Child]:
        """Every child by name."""
        return {child.spec.name: child for group in self._groups.values() for child in group}

    def start(self, spec: ChildSpec) -> Child:
        """Start a child and keep it running until `stop`."""
        child = Child(spec, self._logs)
        child.output.rotate()
        self._groups.setdefault(spec.group, []).append(child)
        child.task = asyncio.create_task(self._keep(child), name=f"keep {spec.name}")
        child.task.add_done_callback(self._lost)
        return child

    async def stop(self) -> None:
        """End every child, the group started last first; returns when none is left."""
        for group in reversed(self._groups.values()):
            await asyncio.gather(*(self._end(child) for child in group))

    def hurry(self) -> None:
        """Shorten whatever `stop` is waiting for to `HURRY_S` per group."""
        self._hurry.set()

    async def _keep(self, child: Child) -> None:
        while not child.stop.is_set():
            status = await self._live(child)
            if child.stop.is_set():
                return
            lived_s = time.monotonic() - (child.restarts.started_at or time.monotonic())
            child.restarts, verdict = died(child.restarts, time.monotonic(), status, child.spec.policy)
            if isinstance(verdict, GiveUp):
                self._give_up(child, verdict)
                return
            self._report(
                f"{child.spec.name} {_ended(status)} after {lived_s:.1f} s; starting again in {verdict.after_s:.1f} s"
                + (f" ({verdict.failures} in a row)" if verdict.failures > 1 else "")
            )
            if verdict.failures == 1 and lived_s < child.spec.policy.settled_s:
                self._tell_output(child)
            await _happens(child.stop, verdict.after_s)

    async def _live(self, child: Child) -> int | None:
        """Run the child once; return its exit status, or `None` where it could not be started."""
        name = child.spec.name
        child.restarts = started(child.restarts, time.monotonic())
        try:
            descriptor = child.output.open()
            try:
                child.process = await spawn(child.spec, descriptor)
            finally:
                os.close(descriptor)
            remember(self._records, name, child.process.pid)
        except OSError as error:
            self._report(f"{name}: {error.strerror or error}")
            if child.pid is None:
                return None
        if child.stop.is_set():  # told to end while it was being started
            child.send(signal.SIGTERM)
        status = await child.process.wait() if child.process else None
        forget(self._records, name)
        return status

    def _give_up(self, child: Child, verdict: GiveUp) -> None:
        child.given_up = True
        self._report(
            f"{child.spec.name} cannot run as configured (exit status {verdict.status}); not starting it again"
        )
        self._tell_output(child)
        if all(other.given_up for other in self._groups[child.spec.group]):
            self.failed.set()

    def _tell_output(self, child: Child) -> None:
        for line in child.output.tail(child.spec.told_lines, child.spec.routine):
            self._report(f"  {child.spec.name} | {line}")
        self._report(f"  {child.spec.name} | (all of it in {child.output.path})")

    async def _end(self, child: Child) -> None:
        child.stop.set()
        hurried = self._hurry.is_set()
        child.send(signal.SIGTERM)
        task = child.task
        if task is None:
            return
        if not hurried:
            hurry = asyncio.create_task(self._hurry.wait())
            await asyncio.wait({task, hurry}, timeout=child.spec.grace_s, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            if not task.done() and self._hurry.is_set():
                child.send(signal.SIGTERM)  # a server that drains takes the second one as "now"
        if not task.done() and self._hurry.is_set():
            await asyncio.wait({task}, timeout=HURRY_S)
        if not task.done():
            self._report(f"{child.spec.name} did not end in time; killing it")
            child.kill()
        await asyncio.wait({task})

    def _lost(self, task: asyncio.Task[None]) -> None:
        """A keeper that broke would leave its child unwatched: that ends the family."""
        if not task.cancelled() and task.exception() is not None:
            self._report(f"{task.get_name()}: {task.exception()!r}")
            self.failed.set()


async def _happens(event: asyncio.Event, within_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within_s)


def _ended(status: int | None) -> str:
    if status is None:
        return "could not be started"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"
