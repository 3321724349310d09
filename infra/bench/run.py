"""Measure the gateway beside its floor, in one run, and print the table of budgets.

    python infra/bench/run.py [--seconds 5] [--json FILE]

The gateway has one core to itself, the load, NATS and the null worker share the other. Compare figures of one run only:
a busy machine moves them all. Where load and worker fill their core first, CPU per unit says what the gateway could do.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GATEWAY_CORE, OTHER_CORE = "0", "1"
READY_S = 60.0


class Stack:
    """`evenflow up` with a null worker, in a directory of its own, its gateway alone on a core."""

    def __init__(self, directory: Path, mode: str, slots: int) -> None:
        self.directory = directory
        self.port, admin = free_port(), free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")} | {
            "PYTHONPATH": str(ROOT),
            "EVENFLOW_GATEWAY__PORT": str(self.port),
            "EVENFLOW_ADMIN__PORT": str(admin),
            "EVENFLOW_WORKERS__0__ENGINE": "null",
            "EVENFLOW_WORKERS__0__NULL_MODE": mode,
            "EVENFLOW_WORKERS__0__SLOTS": str(slots),
            "EVENFLOW_LIMITS__TENANT_STREAMS": "4096",
            "EVENFLOW_LIMITS__QUEUE_PER_TENANT": "1024",
        }
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "up", "--no-answer"],
            cwd=directory,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        wait_for(f"http://127.0.0.1:{self.port}/ready")
        self.ready_s = time.perf_counter() - began
        self.gateway = child(self.process.pid, "gateway.cli")
        pin(self.gateway, GATEWAY_CORE)
        for name in ("workers.cli", "nats-server"):
            pin(child(self.process.pid, name), OTHER_CORE)

    def load(self, mode: str, *options: str) -> dict[str, Any]:
        key = (self.directory / ".evenflow" / "demo.key").read_text().strip()
        return load(f"http://127.0.0.1:{self.port}/v1", self.gateway, mode, "--key", key, *options)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@contextlib.contextmanager
def stack(mode: str, slots: int) -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="evenflow-bench-") as directory:
        made = Stack(Path(directory), mode, slots)
        try:
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def floor() -> Iterator[tuple[str, int]]:
    """The address and process of the application without a gateway, on the gateway's core."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(HERE / "floor.py"), str(port)])
    try:
        wait_for(f"http://127.0.0.1:{port}/lite/none", any_answer=True)
        pin(process.pid, GATEWAY_CORE)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(10)


def load(url: str, pid: int, mode: str, *options: str) -> dict[str, Any]:
    """One run of `load.py` on the other core; its JSON line, with any errors made fatal."""
    command = [
        "taskset",
        "-c",
        OTHER_CORE,
        sys.executable,
        str(HERE / "load.py"),
        mode,
        "--url",
        url,
        "--pid",
        str(pid),
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=180, check=False)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    sys.stderr.write(done.stdout)
    if result["errors"]:
        raise SystemExit(f"{mode} at {url}: {result['errors']}")
    return result


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def wait_for(url: str, *, any_answer: bool = False) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except urllib.error.HTTPError:
            if any_answer:
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise SystemExit(f"{url} did not answer within {READY_S} s")


def child(parent: int, name: str) -> int:
    """The child process of `parent` whose command line holds `name`."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            named = entry.name.isdigit() and name in (entry / "cmdline").read_text().replace("\0", " ")
            if named and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                return int(entry.name)
    raise SystemExit(f"{name} is not running")


def pin(pid: int, core: str) -> None:
    subprocess.run(["taskset", "-apc", core, str(pid)], check=True, stdout=subprocess.DEVNULL)


def measure(seconds: float) -> list[tuple[str, str, str, str]]:
    """Rows: what, measured, its floor or ratio in the same run, reach / aim."""
    short = ["--max-tokens", "12", "-d", str(seconds)]
    flood = ["-c", "16", "--expect", "100", "-d", str(seconds)]
    rows = []
    with floor() as (address, pid):
        lite = f"{address}/lite/v1"
        low = load(lite, pid, "rate", "--rate", "20", "--label", "floor", *short)
        low_first = load(lite, pid, "ttfc", "--rate", "10", "--label", "floor", "-d", str(seconds))
        low_flood = load(lite, pid, "stream", "--label", "floor", *flood)
        low_sat = load(lite, pid, "sat", "-c", "32", "--label", "floor", *short)
        paced = {
            c: load(f"{address}/paced/v1", pid, "paced", "-c", str(c), "--warm", "1", "--label", "floor")
            for c in (16, 128, 500)
        }
    with stack("script", 64) as made:
        idle, cold = memory_mb(made.gateway), made.ready_s
        sat = made.load("sat", "-c", "32", *short)
        rate = made.load("rate", "--rate", "20", *short)
        first = made.load("ttfc", "--rate", "10", "-d", str(seconds))
        chunks = made.load("stream", *flood)
    rows += [
        (
            "whole answers/s per core",
            f"{sat['per_s']:.0f} ({1e6 / sat['cpu_us']:.0f} by CPU)",
            f"floor {low_sat['per_s']:.0f}",
            "1,500 / 3,000",
        ),
        (
            "added latency at 20/s, p50 / p99 ms",
            f"{rate['p50_ms'] - low['p50_ms']:.2f} / {rate['p99_ms'] - low['p99_ms']:.2f}",
            f"floor {low['p50_ms']} / {low['p99_ms']}",
            "2.5, 6 / 1.5, 3",
        ),
        (
            "time to first chunk, p50 / p99 ms",
            f"{first['p50_ms']} / {first['p99_ms']}",
            f"floor {low_first['p50_ms']} / {low_first['p99_ms']}",
            "3, 6 / 2, 4",
        ),
        (
            "chunks/s per core, 16 streams",
            f"{chunks['per_s']:.0f} ({1e6 / chunks['cpu_us']:.0f} by CPU)",
            f"floor {low_flood['per_s']:.0f}",
            "70,000 / 150,000",
        ),
        ("resident memory idle, MB", f"{idle:.0f}", "", "120 / 90"),
        ("cold `evenflow up` (null engine), s", f"{cold:.1f}", "", "6 / 3"),
    ]
    with stack("pace", 1100) as made:
        for c in (16, 128, 500):
            run = made.load("paced", "-c", str(c), "--warm", "1", "--expect", "100")
            ratio = f"{run['cpu_us'] / paced[c]['cpu_us']:.2f}x of {paced[c]['cpu_us']}"
            seen = f"{ratio}; delay p50 / p99 {run['delay_p50_ms']} / {run['delay_p99_ms']} ms"
            rows.append((f"CPU µs per token, {c} paced streams", f"{run['cpu_us']}", seen, "1.5x / 1.2x"))
        held = made.load("hold", "-c", "1000", "-d", "1.5", "--warm", "0")
        rows.append(("resident memory, 1,000 open streams, MB", f"{held['rss_mb']:.0f}", "", "250 / 160"))
    return rows


def memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    rows = measure(options.seconds)
    print("| what | measured | in the same run | reach / aim |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
