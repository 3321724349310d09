"""CPU and memory are those of the whole family, and nobody outlives the run."""

import os
import subprocess
import sys
import time
from pathlib import Path

from infra.bench.peers import ROOT
from infra.bench.processes import busy_seconds, child, cpu_seconds, family, memory_mb, started

UNTIL_S = 60.0
BURN = "import time\nwhile time.process_time() < {s}: pass\nprint('burnt', flush=True)\ntime.sleep(100)\n"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(100)"
)


def until(condition) -> None:
    end = time.monotonic() + UNTIL_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_cpu_is_counted_finer_than_the_kernels_ticks_and_with_ended_threads(tmp_path):
    code = f"import threading\nt = threading.Thread(target=exec, args=({BURN.format(s=0.3)!r}.replace('time.sleep(100)', ''),))"
    code += "\nt.start(); t.join(); import time; print('over', flush=True); time.sleep(100)"
    log = tmp_path / "log"
    with (
        started([sys.executable, "-c", code], log, cwd=tmp_path) as process,
        started(["sleep", "100"], tmp_path / "idle", cwd=tmp_path) as idle,
    ):
        until(lambda: "over" in log.read_text())
        assert cpu_seconds([idle.pid]) < 0.3
        used = cpu_seconds([process.pid])
        assert 0.3 <= used < 30
        assert round(used, 2) != used, "not in steps of 10 ms"
        assert memory_mb([process.pid]) > 1


def test_the_family_counts_and_none_of_it_stays(tmp_path):
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); p.wait()"
    log = tmp_path / "log"
    with started([sys.executable, "-c", code], log, cwd=tmp_path) as process:
        until(lambda: "deaf" in log.read_text())
        members = family(process.pid)
        assert len(members) == 2
        assert child(process.pid, "SIG_IGN") == members[1]
        assert memory_mb(members) > memory_mb(members[:1])
    until(lambda: not any(alive(pid) for pid in members))


def test_a_killed_run_takes_its_processes_along(tmp_path):
    inner = "import time; print('inner', flush=True); time.sleep(100)"
    code = (
        "import sys, pathlib, time; from infra.bench.processes import started\n"
        f"with started([sys.executable, '-c', {inner!r}], pathlib.Path({str(tmp_path / 'log')!r}), cwd=pathlib.Path('.')) as p:\n"
        "    print(p.pid, flush=True)\n    time.sleep(100)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        pid = int(run.stdout.readline())
        until(lambda: "inner" in (tmp_path / "log").read_text())
        assert alive(pid)
    finally:
        run.kill()
        run.wait(UNTIL_S)
        run.stdout.close()
    until(lambda: not alive(pid))


def test_busy_is_what_anybody_does(tmp_path):
    before, log = busy_seconds(), tmp_path / "log"
    with started([sys.executable, "-c", BURN.format(s=0.5)], log, cwd=tmp_path):
        until(lambda: "burnt" in log.read_text())
        assert busy_seconds() - before > 0.4
