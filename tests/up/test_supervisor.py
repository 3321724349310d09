"""The supervisor with real processes: tiny ones, in place of the gateway and its workers."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from gateway.core.restarts import RestartPolicy
from gateway.up import nats_server
from gateway.up.process import ChildSpec, _born, end_leftovers, remember, spawn
from gateway.up.supervisor import Supervisor

QUICK = RestartPolicy(first_s=0.01, most_s=0.05)
SERVER = nats_server.NatsServer(binary=Path("nats-server"), directory=Path(), port=1, identities=Path())
SLEEPER = "import signal; print('up', flush=True); signal.pause()"


def spec(name, code, group="g", **options):
    command = (sys.executable, "-c", textwrap.dedent(code))
    return ChildSpec(name=name, group=group, command=command, policy=options.pop("policy", QUICK), **options)


def gone(pid):
    return _born(pid) is None


@pytest.fixture
def family(tmp_path):
    said = []
    supervisor = Supervisor(logs=tmp_path, records=tmp_path, report=said.append)
    supervisor.said = said
    return supervisor


def printed(child):
    return child.output.path.read_text() if child.output.path.exists() else ""


async def test_a_child_that_is_killed_comes_back_and_its_death_is_one_line(family, eventually):
    child = family.start(spec("w1", SLEEPER))
    await eventually(lambda: "up" in printed(child))
    first = child.pid
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: child.pid not in (None, first))
    await family.stop()
    deaths = [line for line in family.said if "was killed by SIGKILL" in line]
    assert len(deaths) == 1
    assert deaths[0].startswith("w1 ")
    assert child.pid is None


async def test_a_death_at_start_shows_the_last_twenty_lines_of_that_life_only(family, tmp_path, eventually):
    (tmp_path / "w1.log").write_text("from the last run\n")
    child = family.start(spec("w1", "import sys\nfor n in range(30): print('line', n, file=sys.stderr)\nsys.exit(3)"))
    await eventually(lambda: child.restarts.total >= 2)
    await family.stop()
    told = [line for line in family.said if " | line " in line]
    assert told == [f"  w1 | line {n}" for n in range(10, 30)]  # once, not for every death in a row
    assert "w1 ended with exit status 3" in family.said[0]
    assert (tmp_path / "w1.log.1").read_text() == "from the last run\n"


async def test_a_configuration_error_is_not_restarted_and_the_last_of_a_group_fails_the_family(family, eventually):
    healthy = family.start(spec("w1", SLEEPER, "workers"))
    broken = family.start(spec("w2", "import sys; print('workers[1].path: no such file'); sys.exit(78)", "workers"))
    await eventually(lambda: broken.given_up)
    assert not family.failed.is_set()  # w1 still serves
    family.start(spec("gateway", "import sys; sys.exit(78)", "gateway"))
    async with asyncio.timeout(20):
        await family.failed.wait()
    assert broken.restarts.total == 1
    assert "  w2 | workers[1].path: no such file" in family.said
    assert healthy.pid is not None
    await family.stop()


async def test_groups_end_last_started_first_and_each_waits_for_the_one_before(family, tmp_path, eventually):
    log = tmp_path / "order"
    code = f"""
        import signal, time
        def end(*_):
            time.sleep(0.1)
            with open({str(log)!r}, "a") as file: file.write(NAME + "\\n")
            raise SystemExit(0)
        signal.signal(signal.SIGTERM, end)
        print("up", flush=True)
        while True: signal.pause()
    """
    names = ("nats", "w1", "w2", "gateway")
    children = []
    for name in names:
        group = "workers" if name.startswith("w") else name
        children.append(family.start(spec(name, f"NAME = {name!r}\n" + textwrap.dedent(code), group)))
    await eventually(lambda: all("up" in printed(child) for child in children))
    await family.stop()
    ended = log.read_text().split()
    assert (ended[0], set(ended[1:3]), ended[3]) == ("gateway", {"w1", "w2"}, "nats")
    assert not [line for line in family.said if "killing" in line]


STUBBORN = """
    import signal, subprocess, sys
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print("up", grandchild.pid, flush=True)
    while True: signal.pause()
"""


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace_with_all_it_started(family, eventually):
    child = family.start(spec("w1", STUBBORN, grace_s=0.1))
    await eventually(lambda: "up" in printed(child))
    grandchild = int(printed(child).split()[-1])
    async with asyncio.timeout(20):
        await family.stop()
    assert child.pid is None
    assert "w1 did not end in time; killing it" in family.said
    await eventually(lambda: gone(grandchild))


async def test_a_second_signal_cuts_the_grace_short(family, monkeypatch, eventually):
    monkeypatch.setattr("gateway.up.supervisor.HURRY_S", 0.1)
    child = family.start(spec("w1", STUBBORN, grace_s=3600.0))
    await eventually(lambda: "up" in printed(child))
    stopping = asyncio.create_task(family.stop())
    done, _ = await asyncio.wait({stopping}, timeout=0.2)
    assert not done
    family.hurry()
    async with asyncio.timeout(20):
        await stopping
    assert child.pid is None


async def test_stopping_while_a_child_waits_for_its_restart_starts_nothing(family, eventually):
    slow = RestartPolicy(first_s=3600.0, most_s=3600.0)
    child = family.start(spec("w1", "raise SystemExit(1)", policy=slow))
    await eventually(lambda: child.restarts.total == 1)
    async with asyncio.timeout(20):
        await family.stop()
    assert child.restarts.total == 1


async def test_a_missing_program_is_told_and_tried_again(family, eventually):
    child = family.start(ChildSpec(name="w1", group="g", command=("/no/such/program",), policy=QUICK))
    await eventually(lambda: child.restarts.total >= 2)
    await family.stop()
    assert "  w1 | /no/such/program: No such file or directory" in family.said


async def test_children_lead_their_own_process_group_and_read_nothing(family, eventually):
    child = family.start(
        spec("w1", "import os, sys; print(os.getpid() == os.getpgrp(), repr(sys.stdin.read()), flush=True);" + SLEEPER)
    )
    await eventually(lambda: "up" in printed(child))
    assert printed(child).startswith("True ''")
    await family.stop()


async def test_children_are_refused_off_the_main_thread(tmp_path):
    caught = []

    def elsewhere():
        try:
            asyncio.run(spawn(spec("w1", SLEEPER), 2))
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert len(caught) == 1
    assert "main thread" in caught[0]


SUPERVISE = """
    import asyncio, pathlib, sys
    from gateway.up.process import ChildSpec
    from gateway.up.supervisor import Supervisor
    async def main():
        here = pathlib.Path(sys.argv[1])
        supervisor = Supervisor(logs=here, records=here, report=print)
        for name in ("a", "b"):
            supervisor.start(ChildSpec(name=name, group=name, command=(sys.executable, "-c", sys.argv[2])))
        await asyncio.Event().wait()
    asyncio.run(main())
"""


async def test_killing_the_supervisor_leaves_no_orphan(tmp_path, eventually):
    code = "import os, signal; print('up', os.getpid(), flush=True)\nwhile True: signal.pause()"
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SUPERVISE), str(tmp_path), code])
    try:
        logs = [tmp_path / "a.log", tmp_path / "b.log"]
        await eventually(lambda: all(log.exists() and "up" in log.read_text() for log in logs))
        pids = [int(log.read_text().split()[1]) for log in logs]
    finally:
        parent.kill()
        parent.wait()
    await eventually(lambda: all(gone(pid) for pid in pids))


def test_a_child_whose_parent_is_already_gone_does_not_start(tmp_path):
    shim = Path(sys.modules["gateway.up.process"].__file__).with_name("shim.py")
    mark = tmp_path / "started"
    command = [sys.executable, "-I", "-S", str(shim), "1", "/bin/sh", "-c", f"touch {mark}"]
    assert subprocess.run(command, check=False).returncode == 69
    assert not mark.exists()


async def test_leftovers_of_a_killed_run_are_ended_before_the_next_but_reused_pids_are_not(tmp_path):
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as old,
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as stranger,
    ):
        try:
            assert old.stdout.readline() == b"up\n"
            assert stranger.stdout.readline() == b"up\n"
            remember(tmp_path, "nats", old.pid)
            (tmp_path / "w1.json").write_text(f'{{"pid": {stranger.pid}, "born": 1}}')
            (tmp_path / "w2.json").write_text('{"pid": ')
            reaper = asyncio.to_thread(old.wait)
            assert await end_leftovers(tmp_path, patience_s=0.1) == ["nats"]
            assert await asyncio.wait_for(reaper, 20) == -signal.SIGKILL
            assert stranger.poll() is None
            assert not list(tmp_path.glob("*.json"))
        finally:
            old.kill()
            stranger.kill()


async def test_what_a_server_always_says_is_not_told_when_it_dies(family, eventually):
    banner = "[7] 2026/11/30 10:00:00.000001 [INF] "
    errors = [f"[7] 2026/11/30 10:00:01.1 [ERR] {number}" for number in range(7)]
    remark = '[7] 2026/11/30 10:00:01.1 [WRN] Clients that are not using "TLS Handshake First" option will fail'
    said = "\n".join([f"{banner}Starting nats-server", *errors, remark, f"{banner}Server Exiting.."])
    routine = nats_server.child(SERVER).routine
    family.start(spec("nats", f"print({said!r}); raise SystemExit(1)", told_lines=5, routine=routine))
    await eventually(lambda: any("all of it in" in line for line in family.said))
    told = [line for line in family.said if line.startswith("  nats | [")]
    assert [line[-1] for line in told[:5]] == ["2", "3", "4", "5", "6"]
    assert not any("INF" in line for line in family.said)
    await family.stop()
