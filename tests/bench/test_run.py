"""A run goes on without the peers that fail it, asks nobody for more than it can bear, and is fair about turns."""

import io
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.bench import peers, run, systems
from infra.bench.table import render


class Process:
    """Lives until it is told otherwise."""

    def __init__(self):
        self.status, self.pid = None, os.getpid()

    def poll(self):
        return self.status


def system(name: str, *, peer: bool = True, modes=systems.ALL) -> systems.System:
    return systems.System(name, name, Process(), 1, "k", dict.fromkeys(systems.KINDS, "u"), modes, 0.1, peer=peer)


@pytest.fixture
def bench(monkeypatch):
    made = run.Bench(io.StringIO(), rounds=2, seconds=0.1)
    made.asked = []

    def load(who, step, rate):
        made.asked.append((who.name, step.mode, step.c, rate))
        return {
            "mode": step.mode,
            "c": step.c,
            "cpu_us": made.costs.get(who.name, 10.0),
            "errors": made.errors.get(who.name, {}),
        }

    made.costs, made.errors = {}, {}
    monkeypatch.setattr(run, "load", load)
    return made


def test_each_load_goes_to_all_in_turn_and_nobody_is_always_first(bench):
    bench.measure([system("a"), system("b", modes=frozenset({"sat", "paced"}))])
    sat = [name for name, mode, _, _ in bench.asked if mode == "sat"]
    assert sat == ["b", "a", "a", "b"]
    assert [name for name, mode, _, _ in bench.asked if mode == "hold"] == ["a"], "once, at the end"
    assert ("b", "stream", 16, None) not in bench.asked
    written = [json.loads(line) for line in bench.out.getvalue().splitlines()]
    assert written == bench.records
    assert {record["round"] for record in written} == {1, 2}


def test_a_slow_peer_is_asked_for_less_and_we_are_not(bench):
    bench.costs = {"slow": 1500.0, "ours": 1500.0}
    bench.measure([system("slow"), system("ours", peer=False)])
    assert {c for name, mode, c, _ in bench.asked if (name, mode) == ("slow", "paced")} == {16}
    assert {c for name, mode, c, _ in bench.asked if (name, mode) == ("ours", "paced")} == {16, 128, 500}
    assert {rate for name, mode, _, rate in bench.asked if (name, mode) == ("slow", "ttfc")} == {3.0}
    assert {rate for name, mode, _, rate in bench.asked if (name, mode) == ("ours", "ttfc")} == {10.0}
    skipped = [record for record in bench.records if record["c"] == 500 and record["system"] == "slow"]
    assert [list(record["errors"]) for record in skipped] == [["not asked: 75 s of CPU for 2 s of streams"]] * 2
    assert bench.faults() == []


@pytest.mark.parametrize("way", ["ends", "hangs"])
def test_a_peer_that_is_gone_gets_no_more_loads(bench, way):
    gone = system("gone")
    if way == "ends":
        gone.process.status = 1
    else:
        bench.errors = {"gone": {"TimeoutError": 1}}
    bench.measure([gone, system("stays")])
    assert [name for name, *_ in bench.asked].count("gone") == 1
    assert [name for name, mode, *_ in bench.asked if mode == "sat"].count("stays") == 2
    assert any(record["mode"] == "gone" for record in bench.records)


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_ends_with_what_others_took_of_the_machine(bench, ended):
    gone = system("gone")
    gone.process.pid = 2**22 + 1 if ended else os.getpid()  # beyond the kernel's largest number of a process
    bench.watched([gone, system("stays")], os.getpid())
    end = bench.records[-1]
    assert end["mode"] == "end"
    assert 0 <= end["others_percent"] <= 100
    assert end["wall_s"] >= 0


def test_our_own_errors_are_faults(bench):
    bench.errors = {"evenflow": {"HTTP 500": 3}}
    bench.measure([system("evenflow", peer=False)])
    assert any("HTTP 500" in fault for fault in bench.faults())


def test_a_load_that_does_not_come_back_is_an_error(monkeypatch):
    monkeypatch.setattr(run, "OTHER_CORE", str(min(os.sched_getaffinity(0))))
    step = run.Step("rate", "flood", 0, ("-d", "60"), limit_s=0.01)
    assert run.load(system("x"), step, 1.0) == {"errors": {"TimeoutError": 1}}
    broken = run.Step("rate", "flood", 0, ("--nonsense",))
    [reason] = run.load(system("x"), broken, 1.0)["errors"]
    assert reason.startswith("the load failed: ")
    assert "nonsense" in reason


def broken_peer(tmp_path: Path, monkeypatch, lock: str) -> peers.Peer:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "broken.txt").write_text(lock)
    monkeypatch.setattr(peers, "HERE", tmp_path)
    monkeypatch.setattr(peers, "BUILD", tmp_path / "build")
    return peers.Peer("broken", "Broken {version}", "nothing", lambda *_: peers.Command(["false"], {}))


def test_a_peer_that_cannot_be_installed_says_why_without_this_machines_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    peer = broken_peer(tmp_path, monkeypatch, f"nothing==9.9 --hash=sha256:{'0' * 64}\n")
    assert peer.version == "9.9"
    said: list[str] = []
    with pytest.raises(peers.UnavailableError, match=r"pip: ERROR: .*nothing==9\.9") as told:
        peers.install(peer, said.append)
    assert str(tmp_path) not in str(told.value)
    assert said


def test_an_environment_is_made_once_for_each_lock(tmp_path, monkeypatch):
    peer = broken_peer(tmp_path, monkeypatch, "nothing==1\n")
    made = []
    monkeypatch.setattr(peers, "_pip", lambda _peer, directory, *_: made.append(directory))
    monkeypatch.setattr(
        peers.subprocess,
        "run",
        lambda words, **_: Path(words[-1]).mkdir(parents=True, exist_ok=True) or SimpleNamespace(returncode=0),
    )
    for _ in range(2):
        assert peers.install(peer, lambda _: None) == tmp_path / "build" / "broken" / "bin"
    assert len(made) == 1
    peer.lock.write_text("nothing==2\n")
    peers.install(peer, lambda _: None)
    assert len(made) == 2


def test_a_peer_that_does_not_start_is_a_row_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(systems, "install", lambda *_: tmp_path)
    monkeypatch.setattr(systems, "GATEWAY_CORE", None)
    peer = broken_peer(tmp_path, monkeypatch, "nothing==1.5\n")
    with (
        pytest.raises(peers.UnavailableError, match="ended with status 1") as told,
        systems.gateway_of_others(peer, tmp_path, "http://127.0.0.1:1", print),
    ):
        pass
    start = {"system": "broken", "mode": "start", "title": "Broken 1.5", "errors": {str(told.value): 1}}
    meta = {
        "mode": "meta",
        "date": "d",
        "cores": 2,
        "cpu": "c",
        "python": "3",
        "rounds": 1,
        "seconds": 1,
        "upstream": "C",
    }
    assert "| Broken 1.5 | not measured: ended with status 1" in render([meta, start])


@pytest.mark.parametrize("peer", peers.PEERS.values(), ids=list(peers.PEERS))
def test_locks_pin_everything_by_hash_and_name_no_place(peer):
    text = peer.lock.read_text()
    assert re.match(r"\d+\.\d+", peer.version)
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 3
    for entry in entries:
        assert re.match(r"[a-z0-9-]+(\[[a-z,]+\])?==\S+ ", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text
    assert "--index" not in text
    assert " @ " not in text


def test_what_others_read_is_one_plain_line():
    assert peers.plain("a\n  b /some/where/deep/x.py: no | y") == "a b x.py: no / y"
    assert peers.plain("x" * 300) == "x" * 199 + "…"
    assert peers.last_line("a\nb \n\n") == "b"
    assert peers.last_line("") == ""


def test_peers_are_chosen_by_name():
    assert run.peers("none") == []
    assert run.peers("smg,litellm") == ["smg", "litellm"]
    with pytest.raises(run.argparse.ArgumentTypeError, match="nobody"):
        run.peers("smg,nobody")


def test_publishing_leaves_one_file_and_its_tables(tmp_path):
    sample, results, document = Path(__file__).with_name("sample.jsonl"), tmp_path / "results", tmp_path / "d.md"
    results.mkdir()
    (results / "2020-01-01.jsonl").write_text("old")
    document.write_text("# D\n<!-- bench: 2020-01-01.jsonl -->\nold\n<!-- bench: end -->\n")
    run.publish(sample, results, document)
    assert [path.name for path in results.iterdir()] == ["2026-12-01.jsonl"]
    assert (results / "2026-12-01.jsonl").read_text() == sample.read_text()
    tables = render(run.read(sample))
    assert document.read_text() == f"# D\n<!-- bench: 2026-12-01.jsonl -->\n{tables}<!-- bench: end -->\n"
