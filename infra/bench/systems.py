"""What is measured, started: Evenflow with null workers, its floor, and the gateways of others before a fake upstream.

Whatever is under measurement has one core to itself; load, NATS, workers and the upstream share the other.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.bench.peers import BUILD, HERE, ROOT, Peer, UnavailableError, install, last_line, plain
from infra.bench.processes import (
    GATEWAY_CORE,
    OTHER_CORE,
    child,
    cpu_seconds,
    family,
    free_port,
    memory_mb,
    pin,
    started,
)

READY_S = 90.0
IDLE_S = 1.0
KINDS = ("flood", "paced", "slow")
ALL = frozenset({"sat", "rate", "stream", "ttfc", "paced", "hold"})
# Three workers, since a worker has one model and a model one pace; the slow one is for streams that are only held open.
WORKERS = {
    "flood": {"NULL_MODE": "script", "SLOTS": "64"},
    "paced": {"NULL_MODE": "pace", "SLOTS": "600"},
    "slow": {"NULL_MODE": "pace", "NULL_RATE": "5", "NULL_TOKENS": "1000", "SLOTS": "1100"},
}


@dataclass
class System:
    """One running system as a load sees it; its model names are KINDS."""

    name: str
    title: str
    process: "subprocess.Popen[bytes]"
    pid: int
    key: str
    urls: dict[str, str]
    modes: frozenset[str]
    ready_s: float
    peer: bool = False

    def started(self) -> dict[str, Any]:
        """What there is to say before any load: memory, CPU of doing nothing, and how a wrong key is answered."""
        status, _ = ask(self.urls["flood"], "flood", "wrong")
        cpu = cpu_seconds(family(self.pid))
        time.sleep(IDLE_S)
        cpu = cpu_seconds(family(self.pid)) - cpu
        return {
            "system": self.name,
            "mode": "start",
            "title": self.title,
            "ready_s": round(self.ready_s, 2),
            "rss_mb": memory_mb(family(self.pid)),
            "idle_cpu_percent": round(cpu / IDLE_S * 100, 2),
            "wrong_key": status,
            "errors": {},
        }


def ask(url: str, model: str, key: str) -> tuple[int, str]:
    """Status and start of the answer to one small question; status 0 if nobody answers."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    request = urllib.request.Request(
        f"{url}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status), str(answer.read(400).decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(400).decode(errors="replace")
    except OSError as error:
        return 0, str(error)


def wait_for(process: "subprocess.Popen[bytes]", log: Path, answers: Callable[[], tuple[bool, str]]) -> float:
    """Seconds until `answers` says so. Raises UnavailableError if the process ends or READY_S pass before."""
    began = time.perf_counter()
    said = ""
    while (waited := time.perf_counter() - began) < READY_S:
        if process.poll() is not None:
            end = last_line(log.read_text(errors="replace"))
            raise UnavailableError(plain(f"ended with status {process.returncode}: {end}"))
        good, said = answers()
        if good:
            return waited
        time.sleep(0.02)
    raise UnavailableError(plain(f"no answer within {READY_S:.0f} s: {said}"))


def _ready(url: str) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200, ""
    except OSError as error:
        return False, str(error)


def _answered(url: str, kinds: tuple[str, ...], key: str) -> tuple[bool, str]:
    for kind in kinds:
        status, text = ask(url, kind, key)
        if status != 200 or '"choices"' not in text:
            return False, f"{status} {text}"
    return True, ""


@contextlib.contextmanager
def _up(directory: Path, **settings: str) -> Iterator[tuple["subprocess.Popen[bytes]", int, float]]:
    """`evenflow up` in `directory`: its process, its port, seconds until it was ready."""
    directory.mkdir()
    port, admin = free_port(), free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    environment |= {"PYTHONPATH": str(ROOT), "EVENFLOW_GATEWAY__PORT": str(port), "EVENFLOW_ADMIN__PORT": str(admin)}
    environment |= {f"EVENFLOW_{name}": value for name, value in settings.items()}
    command, log = [sys.executable, "-m", "gateway.cli", "up", "--no-answer"], directory / "log"
    with started(command, log, env=environment, cwd=directory) as process:
        yield process, port, wait_for(process, log, lambda: _ready(f"http://127.0.0.1:{port}/ready"))


def cold_start(directory: Path) -> dict[str, Any]:
    """Seconds from `evenflow up` to ready in an empty directory, the model on disk. Raises UnavailableError."""
    with _up(directory / "cold") as (_, _, ready_s):
        return {"system": "evenflow", "mode": "cold", "ready_s": round(ready_s, 2), "errors": {}}


@contextlib.contextmanager
def evenflow(directory: Path) -> Iterator[System]:
    """`evenflow up` with a null worker for each kind, its gateway alone on a core. Raises UnavailableError."""
    settings = {"LIMITS__TENANT_STREAMS": "4096", "LIMITS__QUEUE_PER_TENANT": "1024"}
    for number, (kind, worker) in enumerate(WORKERS.items()):
        settings |= {f"WORKERS__{number}__{name}": value for name, value in worker.items()}
        settings |= {f"WORKERS__{number}__ENGINE": "null", f"WORKERS__{number}__MODEL": kind}
        settings |= {f"WORKERS__{number}__NAME": kind}
    version = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    with _up(directory / "evenflow", **settings) as (process, port, ready_s):
        gateway = child(process.pid, "gateway.cli")
        for pid in family(process.pid):
            pin(pid, GATEWAY_CORE if pid == gateway else OTHER_CORE)
        key = (directory / "evenflow" / ".evenflow" / "demo.key").read_text().strip()
        url = f"http://127.0.0.1:{port}/v1"
        wait_for(process, directory / "evenflow" / "log", lambda: _answered(url, KINDS, key))
        title = f"**Evenflow {version}**, keys and bounds, NATS and worker behind it"
        yield System("evenflow", title, process, gateway, key, dict.fromkeys(KINDS, url), ALL, ready_s)


@contextlib.contextmanager
def floors(directory: Path) -> Iterator[list[System]]:
    """What the same answers cost without a gateway: Litestar, and bare ASGI below it, in one process.

    Raises UnavailableError.
    """
    port, key, log = free_port(), secrets.token_urlsafe(24), directory / "floor.log"
    command = [sys.executable, "-m", "infra.bench.floor", str(port)]
    environment = {**os.environ, "EVENFLOW_BENCH_KEY": key}
    with started(command, log, GATEWAY_CORE, env=environment, cwd=ROOT) as process:
        root = f"http://127.0.0.1:{port}"
        ready_s = wait_for(process, log, lambda: _answered(f"{root}/lite/v1", ("flood",), key))
        litestar = {"flood": f"{root}/lite/v1"}
        bare = {"flood": f"{root}/bare/v1", "paced": f"{root}/paced/v1"}
        yield [
            System("litestar", "floor: Litestar and uvicorn, key hash, answers from memory", process, process.pid, key,
                   litestar, frozenset({"sat", "rate", "stream", "ttfc"}), ready_s),
            System("bare", "floor: bare ASGI and uvicorn, answers from memory", process, process.pid, key,
                   bare, frozenset({"stream", "paced"}), ready_s),
        ]  # fmt: skip


@contextlib.contextmanager
def upstream(directory: Path) -> Iterator[tuple[str, str, int]]:
    """The stand-in for a model server behind the peers: its address, which of the two programs it is, its process.

    Raises UnavailableError.
    """
    port, log = free_port(), directory / "upstream.log"
    binary = compiled_upstream()
    command = [str(binary)] if binary else [sys.executable, "-m", "infra.bench.upstream"]
    with started([*command, str(port)], log, OTHER_CORE, cwd=ROOT) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(process, log, lambda: _answered(f"{url}/v1", ("flood",), ""))
        yield url, "C" if binary else "Python", process.pid


def compiled_upstream() -> Path | None:
    """`upstream.c` as a program, made again if the source is newer; None without a compiler, or if it fails."""
    source, binary = HERE / "upstream.c", BUILD / "upstream"
    if binary.is_file() and binary.stat().st_mtime > source.stat().st_mtime:
        return binary
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    BUILD.mkdir(exist_ok=True)
    fresh = BUILD / f"upstream.{os.getpid()}"
    command = [compiler, "-O2", "-Wall", "-o", str(fresh), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        sys.stderr.write(f"upstream.c does not compile here, so the slower one is used: {done.stderr}\n")
        return None
    return fresh.replace(binary)


@contextlib.contextmanager
def gateway_of_others(peer: Peer, directory: Path, behind: str, say: Callable[[str], None]) -> Iterator[System]:
    """A peer before the upstream at `behind`, installed if need be. Raises UnavailableError."""
    binaries = install(peer, say)
    home = directory / peer.name
    home.mkdir()
    port, key, log = free_port(), f"sk-{secrets.token_urlsafe(24)}", home / "log"
    command = peer.command(binaries, home, port, behind, key)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    environment |= {"HOME": str(home), **command.env}
    with started(command.words, log, GATEWAY_CORE, env=environment, cwd=home) as process:
        url = f"http://127.0.0.1:{port}/v1"
        ready_s = wait_for(process, log, lambda: _answered(url, KINDS, key))
        title = peer.title.format(version=peer.version)
        yield System(peer.name, title, process, process.pid, key, dict.fromkeys(KINDS, url), ALL, ready_s, peer=True)
