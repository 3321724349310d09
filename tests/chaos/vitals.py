"""What processes hold, looked at from outside: memory, open files, threads, and what NATS knows of its clients."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.up.files import free_port
from gateway.up.nats_server import find_binary
from tests.e2e.clients import command
from tests.e2e.stack import Stack, rss_mb, running

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Counts:
    """What must come back to where it was. `files` are open descriptors by kind; `subscriptions` those of each connection
    to NATS, and of all of them together with the server's own."""

    files: dict[str, dict[str, int]]
    threads: dict[str, int]
    subscriptions: dict[str, int]


class Monitored:
    """A stack on a NATS server of its own that answers questions about itself (the embedded one listens to nobody)."""

    def __init__(self, stack: Stack, nats: int, monitor: int) -> None:
        self.stack = stack
        self._nats = nats
        self._monitor = f"http://{HOST}:{monitor}"

    def pids(self) -> dict[str, int]:
        """Every process by what it is."""
        [gateway] = self.stack.pids("gateway.cli gateway")
        workers = {name: self.stack.pids(f"serve --name {name}") for name in ("w1", "w2")}
        return {"gateway": gateway, "nats": self._nats, **{name: pid for name, [pid] in workers.items()}}

    def memory(self) -> dict[str, float]:
        """Resident memory in MB."""
        return {name: rss_mb(pid) for name, pid in self.pids().items()}

    def counts(self) -> Counts:
        """See `Counts`."""
        pids = {name: pid for name, pid in self.pids().items() if name != "nats"}  # it opens files as it likes
        connections = self._ask("/connz?subs=1")["connections"]
        return Counts(
            files={name: _files(pid) for name, pid in pids.items()},
            threads={name: _threads(pid) for name, pid in pids.items()},
            subscriptions={one["name"]: one["subscriptions"] for one in connections} | self._in_all(),
        )

    def _in_all(self) -> dict[str, int]:
        return {"all": self._ask("/subsz")["num_subscriptions"]}

    def _ask(self, path: str) -> dict[str, Any]:
        return httpx.get(f"{self._monitor}{path}", timeout=20, trust_env=False).json()


@contextlib.contextmanager
def monitored(directory: Path, **settings: str) -> Iterator[Monitored]:
    """Start the server as an operator would, one line of configuration added, and the stack on it."""
    port, monitor = free_port(HOST), free_port(HOST)
    url, bus = f"nats://localhost:{port}", directory / "bus"
    stack = Stack(directory, **settings)
    command(stack, "nats", "init", "--dir", "bus", "--host", "localhost", "--port", str(port))
    command(stack, "nats", "add-worker", "w2", "--dir", "bus")
    with (bus / "server.conf").open("a") as conf:
        conf.write(f'http: "{HOST}:{monitor}"\n')
    with (directory / "own.log").open("wb") as log:
        process = subprocess.Popen([find_binary(), "-c", "server.conf"], cwd=bus, stderr=log)
    try:
        told = {"NATS__URL": url, "NATS__IDENTITIES": str(bus / "identities")}
        with running(directory, **settings, **told) as stack:
            yield Monitored(stack, process.pid, monitor)
    finally:
        process.terminate()
        process.wait(20)


def slope(samples: list[tuple[float, float]]) -> float:
    """Least squares: by how much the second of the pairs grows for each unit of the first."""
    n = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / n, sum(y for _, y in samples) / n
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / sum((x - mean_x) ** 2 for x, _ in samples)


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _files(pid: int) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            kind = target.partition(":")[0] if not target.startswith("/") else "file"
            kinds[kind] = kinds.get(kind, 0) + 1
    return kinds
