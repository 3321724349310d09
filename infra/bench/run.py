"""Measure Evenflow beside its floor and other gateways, in one run, and print the tables of budgets.

    make bench                                     # everything
    make bench ARGS="--peers smg --rounds 1"       # less of it; `--peers none` for Evenflow and its floor alone
    make bench ARGS="--publish"                    # keep the raw lines with the sources and put them into the document

Whatever is under measurement has core 0 to itself; load, NATS, workers and the fake upstream share core 1. All systems
stand at the same time, and short rounds of the same load go to each in turn, so that a busy machine hurts all alike.
Peers come from PyPI, each into an environment of its own below `.venv-bench`, which is made once. A peer that cannot be
installed, started or loaded is a line of the table. The exit status is 1 if Evenflow or its floor made errors.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from infra.bench import systems
from infra.bench.peers import BUILD, HERE, PEERS, ROOT, UnavailableError, last_line, plain
from infra.bench.processes import OTHER_CORE, busy_seconds, cpu_seconds, family
from infra.bench.table import FIRST_RATE, HELD, PACED, Run, put_into, read, render

DOCUMENT = ROOT / "docs" / "benchmarks.md"
RESULTS = HERE / "results"
CHUNKS, PACED_S, HELD_PER_S = 100, 2.0, 5.0
BUSY_AT_MOST = 0.5
WORTH_S = 10.0  # of CPU, for one load of paced streams; what would need more says nothing that a smaller one does not


@dataclass(frozen=True)
class Step:
    """One load: the mode and words of `load.py`, the model it asks for, and the longest it may take."""

    mode: str
    kind: str
    c: int
    words: tuple[str, ...]
    limit_s: float = 90.0
    last_round: bool = False


def plan(seconds: float) -> list[Step]:
    """The loads of one round, for every system in turn."""
    expect = ("--expect", str(CHUNKS))
    long = ("-d", str(2 * seconds))
    paced = [Step("paced", "paced", c, ("-c", str(c), "--warm", "0", *expect)) for c in PACED]
    return [
        Step("sat", "flood", 32, ("-c", "32", "-d", str(seconds), "--max-tokens", "12")),
        Step("rate", "flood", 0, ("--rate", "20", "--max-tokens", "12", *long)),
        Step("stream", "flood", 16, ("-c", "16", "-d", str(seconds), *expect)),
        Step("ttfc", "flood", 0, (*expect, *long)),
        *paced,
        Step(
            "hold", "slow", HELD, ("-c", str(HELD), "-d", "30", "--warm", "0", "--max-tokens", "1000"), last_round=True
        ),
    ]


class Bench:
    """One run: the records so far, each written out at once."""

    def __init__(self, out: TextIO, rounds: int, seconds: float) -> None:
        self.out, self.rounds, self.steps = out, rounds, plan(seconds)
        self.records: list[dict[str, Any]] = []
        self.gone: dict[str, str] = {}
        self.began = time.monotonic()

    def record(self, made: dict[str, Any]) -> None:
        self.records.append(made)
        self.out.write(json.dumps(made, ensure_ascii=False) + "\n")
        self.out.flush()

    def say(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self.began:4.0f} s  {text}\n")
        sys.stderr.flush()

    def watched(self, running: list[systems.System], upstream: int) -> None:
        """All rounds, and how much of the machine others took meanwhile."""
        roots = {upstream, *(system.process.pid for system in running)}

        def spent() -> dict[int | str, float]:
            found: dict[int | str, float] = {"all": busy_seconds(), "loads": loads_s()}
            for root in roots:
                with contextlib.suppress(OSError):  # a peer that has ended: what it took counts as work of others
                    found[root] = cpu_seconds(family(root))
            return found

        before, began = spent(), time.monotonic()
        self.measure(running)
        after, wall = spent(), time.monotonic() - began
        took = {who: after[who] - before[who] for who in before.keys() & after.keys()}
        others = took.pop("all") - sum(took.values())
        percent = others / wall / (os.cpu_count() or 1) * 100
        self.record({"mode": "end", "wall_s": round(wall, 1), "others_percent": round(min(100, max(0, percent)), 1)})

    def measure(self, running: list[systems.System]) -> None:
        for number in range(1, self.rounds + 1):
            turn = running[number % len(running) :] + running[: number % len(running)]  # nobody is always first
            for step in self.steps:
                if step.last_round and number < self.rounds:
                    continue
                for system in turn:
                    if step.mode in system.modes and system.name not in self.gone:
                        self.one(system, step, number)

    def one(self, system: systems.System, step: Step, number: int) -> None:
        head = {"system": system.name, "mode": step.mode, "c": step.c, "round": number}
        if need := self.too_much(system, step):
            self.record({**head, "errors": {need: 1}})
            return
        if (rate := self.bearable(system, step)) is not None:
            head["rate"] = rate
        made = {**head, **load(system, step, rate)}
        self.record(made)
        figures = {name: made[name] for name in ("per_s", "cpu_us", "p50_ms", "p99_ms", "rss_mb") if made.get(name)}
        self.say(f"round {number}  {step.mode:6} {step.c or '':4} {system.name:9} {made['errors'] or figures}")
        status = system.process.poll()
        if status is not None or "TimeoutError" in made["errors"]:
            self.gone[system.name] = f"ended with status {status}" if status is not None else "does not answer"
            self.say(f"{system.name} {self.gone[system.name]}: no more loads for it")
            self.record({**head, "mode": "gone", "errors": {self.gone[system.name]: 1}})

    def cost_us(self, system: systems.System, mode: str) -> float | None:
        """CPU per chunk in the last such load of this system."""
        found = [
            record["cpu_us"]
            for record in self.records
            if (record.get("system"), record["mode"]) == (system.name, mode) and record.get("cpu_us")
        ]
        return found[-1] if found else None

    def too_much(self, system: systems.System, step: Step) -> str:
        """Why a peer is not asked for so many streams at once, if that would only measure how far it falls behind."""
        cost = self.cost_us(system, "paced")
        if not system.peer or step.mode not in {"paced", "hold"} or cost is None:
            return ""
        chunks = step.c * (CHUNKS if step.mode == "paced" else HELD_PER_S * PACED_S)
        need = chunks * cost / 1e6
        return f"not asked: {need:.0f} s of CPU for {PACED_S:g} s of streams" if need > WORTH_S else ""

    def bearable(self, system: systems.System, step: Step) -> float | None:
        """Streams a second for time to first chunk: fewer for a peer that would only queue."""
        if step.mode != "ttfc":
            return None
        cost = self.cost_us(system, "stream")
        if not system.peer or cost is None:
            return FIRST_RATE
        return min(FIRST_RATE, max(1.0, BUSY_AT_MOST * 1e6 / (cost * CHUNKS) // 1))

    def faults(self) -> list[str]:
        """Errors of what is ours."""
        return [
            f"{record['system']} {record['mode']}: {record['errors']}"
            for record in self.records
            if record.get("errors") and record.get("system") in {"evenflow", "litestar", "bare"}
        ]


def loads_s() -> float:
    """CPU of this process and of the loads that have ended."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def load(system: systems.System, step: Step, rate: float | None) -> dict[str, Any]:
    """One run of `load.py` on the other core; whatever went wrong stands in its `errors`."""
    command = ["taskset", "-c", OTHER_CORE, sys.executable, "-m", "infra.bench.load", step.mode, *step.words]
    command += ["--url", system.urls[step.kind], "--model", step.kind, "--pid", str(system.pid)]
    command += [] if rate is None else ["--rate", str(rate)]
    environment = {**os.environ, "EVENFLOW_BENCH_KEY": system.key}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=step.limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"errors": {"TimeoutError": 1}}
    if not done.stdout:
        return {"errors": {plain(f"the load failed: {last_line(done.stderr)}"): 1}}
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def meta(options: argparse.Namespace, upstream: str) -> dict[str, Any]:
    """What the figures were measured with; nothing that tells one machine from another of its kind."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "mode": "meta",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "cpu": plain(found[1]) if found else platform.machine(),
        "python": platform.python_version(),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "upstream": upstream,
    }


def run(options: argparse.Namespace, out: TextIO, directory: Path) -> Bench:
    bench = Bench(out, options.rounds, options.seconds)
    with contextlib.ExitStack() as stack:
        behind, kind, upstream = stack.enter_context(systems.upstream(directory))
        bench.record(meta(options, kind))
        bench.say(f"the upstream of peers is up ({kind}); a cold start of Evenflow")
        try:
            bench.record(systems.cold_start(directory))
        except UnavailableError as reason:
            bench.record({"system": "evenflow", "mode": "cold", "errors": {str(reason): 1}})
        running = [stack.enter_context(systems.evenflow(directory))]
        for name in options.peers:
            bench.say(f"{name} starts")
            try:
                made = systems.gateway_of_others(PEERS[name], directory, behind, bench.say)
                running.append(stack.enter_context(made))
            except UnavailableError as reason:
                bench.say(f"{name}: {reason}")
                title = PEERS[name].title.format(version=PEERS[name].version)
                bench.record({"system": name, "mode": "start", "title": title, "errors": {str(reason): 1}})
        running += stack.enter_context(systems.floors(directory))
        for system in running:
            bench.record(system.started())
        bench.say(f"{', '.join(system.name for system in running)} are up; {options.rounds} rounds")
        bench.watched(running, upstream)
    return bench


def peers(text: str) -> list[str]:
    names = [] if text in {"", "none"} else text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=peers, default=list(PEERS), help=f"of {','.join(PEERS)}, or none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one flood; latencies take twice as long")
    parser.add_argument("--publish", action="store_true", help="write infra/bench/results/DATE.jsonl and the document")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2 or shutil.which("taskset") is None:
        raise SystemExit("bench: needs two cores, and taskset (of util-linux) to give the gateway one of them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    BUILD.mkdir(exist_ok=True)
    file = BUILD / f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%dT%H-%M-%S}.jsonl"
    with tempfile.TemporaryDirectory(prefix="evenflow-bench-") as directory, file.open("w", encoding="utf-8") as out:
        try:
            bench = run(options, out, Path(directory))
        except UnavailableError as reason:
            raise SystemExit(f"bench: {reason}") from None
    print(render(read(file)))
    print(f"raw lines: {file.relative_to(ROOT)}")
    faults = bench.faults()
    for fault in faults:
        sys.stderr.write(f"bench: {fault}\n")
    if options.publish and not faults:
        publish(file, RESULTS, DOCUMENT)
    return 1 if faults else 0


def publish(file: Path, results: Path, document: Path) -> None:
    """Keep the raw lines as the only ones among the sources, and put their tables into the document."""
    records = read(file)
    kept = results / f"{Run(records).meta['date']}.jsonl"
    results.mkdir(exist_ok=True)
    for old in results.glob("*.jsonl"):
        old.unlink()
    shutil.copyfile(file, kept)
    document.write_text(put_into(document.read_text(encoding="utf-8"), kept.name, render(records)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
