"""One child process: started so that it cannot outlive its parent, known by a record on disk, its output in a file."""

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.core.restarts import RestartPolicy
from gateway.up.files import explain

_SHIM = Path(__file__).with_name("shim.py")
_TAIL_BYTES = 16 * 1024
_POLL_S = 0.05


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. Children of one `group` stand in for each other; `environment` is laid over the supervisor's own.

    `grace_s` is how long it may take to end after SIGTERM, before SIGKILL. When it dies, up to `told_lines` of its last
    output are told, without the lines that the pattern `routine` matches.
    """

    name: str
    group: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = {}
    directory: Path | None = None
    grace_s: float = 5.0
    policy: RestartPolicy = RestartPolicy()
    told_lines: int = 20
    routine: str = ""


class Output:
    """The log file of one child: begun anew with every `up` (one older is kept), appended to by its restarts."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.log"
        self._from = 0

    def rotate(self) -> None:
        """Keep the last run's file as `<name>.log.1`."""
        try:
            if self.path.exists():
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        except OSError as error:
            raise explain(error, str(self.path)) from error

    def open(self) -> int:
        """Return a descriptor to append to, remembering where this life's output begins."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._from = os.fstat(descriptor).st_size
        return descriptor

    def tail(self, lines: int = 20, routine: str = "") -> list[str]:
        """Return the last `lines` lines of the present life that the pattern `routine`, if any, does not match."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._from, end - _TAIL_BYTES))
                said = file.read().decode(errors="replace").splitlines()
                return [line for line in said if not (routine and re.search(routine, line))][-lines:]
        except OSError as error:
            return [f"({self.path}: {error.strerror})"]


async def spawn(spec: ChildSpec, output: int) -> asyncio.subprocess.Process:
    """Start `spec` in a process group of its own (Ctrl-C reaches only the supervisor), dying with this process.

    `output` receives its standard output and error; standard input is empty.

    Raises:
        OSError: the machine refused a process.
        RuntimeError: called off the main thread, with whose end the child would end too (PR_SET_PDEATHSIG).
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("children are started from the main thread: they end with the thread that started them")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), *spec.command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, **spec.environment},
        cwd=spec.directory,
        process_group=0,
    )


class Record(msgspec.Struct, frozen=True):
    """A child as the next `up` can find it: the start time (clock ticks since boot) tells it from a reused pid."""

    pid: int
    born: int


def remember(directory: Path, name: str, pid: int) -> None:
    """Record a running child. Best effort: the record only speeds up a start after a crash."""
    born = _born(pid)
    if born is not None:
        (directory / f"{name}.json").write_bytes(msgspec.json.encode(Record(pid, born)))


def forget(directory: Path, name: str) -> None:
    """Drop the record of a child that ended."""
    (directory / f"{name}.json").unlink(missing_ok=True)


def recorded(directory: Path, name: str) -> int | None:
    """Return the pid of a recorded child that still runs."""
    record = _read(directory / f"{name}.json")
    return record.pid if record is not None and _born(record.pid) == record.born else None


async def end_leftovers(directory: Path, patience_s: float = 5.0) -> list[str]:
    """End children of an earlier supervisor that was killed, and return their names.

    They have had their SIGTERM when it died; whoever is still draining gets `patience_s`, then SIGKILL, so that two
    servers never share one data directory.
    """
    names = []
    for path in _records(directory):
        record = _read(path)
        if record is not None and _born(record.pid) == record.born:
            names.append(path.stem)
            await _end(record, patience_s)
        path.unlink(missing_ok=True)
    return names


async def _end(record: Record, patience_s: float) -> None:
    for signal_, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        try:
            os.kill(record.pid, signal_)
        except ProcessLookupError:
            return
        polls = int(wait_s / _POLL_S) + 1
        for _ in range(polls):
            if _born(record.pid) != record.born:
                return
            await asyncio.sleep(_POLL_S)


def _records(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.json"))


def _read(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None  # a half-written record of a crash: nothing can be known from it


def _born(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since boot (proc(5), field 22); `None` once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
