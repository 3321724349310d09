"""Processes under measurement: what the kernel says of them, and starts and ends that always come."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

GATEWAY_CORE, OTHER_CORE = "0", "1"
GRACE_S = 15.0
_SCHED = 2  # the kind of CPU clock that counts what the scheduler gave, as clock_getcpuclockid(3) makes its ids


def family(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of processes so far, their ended threads included, to the nanosecond (/proc/PID/stat counts in 10 ms).

    Raises OSError if one of them has ended.
    """
    return sum(time.clock_gettime_ns((~pid << 3) | _SCHED) for pid in pids) / 1e9


def memory_mb(pids: Sequence[int]) -> float:
    """Resident memory, 10^6 bytes. Raises OSError if one of them has ended."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def busy_seconds() -> float:
    """CPU time that all cores spent so far on anything, what a virtual machine's host gave to others included."""
    user, nice, system, _, _, irq, soft_irq, stolen = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + irq + soft_irq + stolen) / os.sysconf("SC_CLK_TCK")


def child(parent: int, name: str) -> int:
    """The child of `parent` whose command line holds `name`. Raises LookupError."""
    for pid in family(parent)[1:]:
        with contextlib.suppress(OSError):
            if name in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                return pid
    raise LookupError(f"{name} is not running")


def pin(pid: int, core: str) -> None:
    """Move a process with all its threads to one core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {int(core)})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, core: str | None = None, *, env: Mapping[str, str] | None = None, cwd: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process on `core` (any, if None), its output in `log`; at the end SIGTERM, then SIGKILL for all that is left.

    It has a session of its own, so that Ctrl-C reaches the run alone, which then ends it in order; should the run be
    killed, the kernel ends it (where setpriv, of util-linux like taskset, is at hand).
    """
    bound = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    pinned = [*bound, *(["taskset", "-c", core] if core else []), *command]
    with log.open("ab") as out:
        process = subprocess.Popen(
            pinned, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    members = family(process.pid)[1:]
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(GRACE_S)
    for pid in members:
        with contextlib.suppress(OSError):
            if os.getsid(pid) == process.pid:  # still ours: a number can have been given to another process since
                os.kill(pid, 9)
