"""A whole Evenflow in a directory of its own: `evenflow up` as a user starts it, real NATS, real worker, real gateway."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from gateway.up import identities
from shared.bus import Bus
from shared.identity import find_identity
from shared.subjects import Kind

ROOT = Path(__file__).parents[2]
LLAMA = "smollm2-135m-instruct"
UP_S = 60.0


class Stack:
    """One running `evenflow up`."""

    flags: tuple[str, ...] = ("--no-answer",)

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.port, self.admin_port = _free_ports(2)
        self.url = f"{'https' if 'TLS__CERTIFICATE' in settings else 'http'}://127.0.0.1:{self.port}"
        self.verify: object = True
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> str:
        return (self.directory / ".evenflow" / "demo.key").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def start(self) -> "Stack":
        environ = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
        environ |= {
            "EVENFLOW_GATEWAY__PORT": str(self.port),
            "EVENFLOW_ADMIN__PORT": str(self.admin_port),
            **{f"EVENFLOW_{name.upper()}": value for name, value in self.settings.items()},
        }
        with (self.directory / "up.out").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "up", *self.flags],
                cwd=self.directory,
                env={**environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + UP_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"evenflow up ended with {self.process.returncode}:\n{self.output()}")
            with contextlib.suppress(httpx.HTTPError):
                # Asked at the operators' door, which speaks plain HTTP whatever the tenants' does.
                if httpx.get(f"{self.admin}/ready", timeout=2).status_code == 200:
                    return self
            time.sleep(0.05)
        self.stop()
        raise AssertionError(f"evenflow up was not ready within {UP_S} s:\n{self.output()}")

    def stop(self) -> int:
        """SIGTERM, then the exit code; SIGKILL (and a failure) if that takes longer than any grace."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    async def join(self, kind: Kind, name: str) -> Bus:
        """The stack's bus for a process of the test's own, with an identity of its own as the operator would add it."""
        directory = self.directory / ".evenflow" / "nats"
        folders = directory / "identities"
        if not (folders / f"{kind}-{name}").exists():
            identities.add(directory, kind, name)
            assert identities.reload(directory), "the server does not run"
        bus = Bus(name, os.urandom(8).hex())
        port = (directory / "port").read_text().strip()
        await bus.connect(f"nats://127.0.0.1:{port}", identity=find_identity(str(folders), kind, name))
        return bus

    def output(self) -> str:
        text = (self.directory / "up.out").read_text(errors="replace")
        for log in sorted((self.directory / ".evenflow" / "log").glob("*.log")):
            text += f"\n--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        return text

    def metrics(self) -> dict[str, float]:
        """Every sample by its full name with labels, as scraped."""
        text = httpx.get(f"{self.admin}/metrics", timeout=5).text
        return {
            match[1]: float(match[2])
            for match in re.finditer(r"^([a-z][^ ]*?(?:\{.*\})?) ([^ ]+)$", text, re.MULTILINE)
        }

    def pids(self, name: str) -> list[int]:
        """Living child processes of this stack whose command line contains `name`."""
        assert self.process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if parent == self.process.pid and name in command:
                    found.append(int(entry.name))
        return found

    def settled(self, within_s: float = 10.0) -> dict[str, float]:
        """Wait until nothing is queued, held or open any more; returns the last scrape, settled or not."""
        until = time.monotonic() + within_s
        while True:
            seen = self.metrics()
            idle = all(
                value == 0
                for name, value in seen.items()
                if name.startswith(
                    (
                        "evenflow_requests_in_flight",
                        "evenflow_queue_length",
                        "evenflow_streams_",
                        "evenflow_worker_slots_prefill",
                        "evenflow_worker_slots_decode",
                        "evenflow_worker_queue",
                        "evenflow_worker_in_flight",
                    )
                )
            )
            if idle or time.monotonic() > until:
                return seen
            time.sleep(0.05)


@contextlib.contextmanager
def running(directory: Path, **settings: str) -> Iterator[Stack]:
    stack = Stack(directory, **settings).start()
    try:
        yield stack
    finally:
        stack.stop()


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
