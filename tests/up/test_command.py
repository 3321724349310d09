"""`evenflow up` from end to end, with real NATS and small stand-ins for the gateway and its worker."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gateway.up.process import _born

# A gateway of 40 lines: /ready turns 200 once the file `worker-up` exists, and one streamed answer, as OpenAI's.
GATEWAY = """
    import http.server, json, os, pathlib, sys
    key = pathlib.Path(".evenflow/demo.key").read_text().strip()
    class Door(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_): pass
        def do_GET(self):
            ready = self.path == "/ready" and pathlib.Path("worker-up").exists()
            worker = {"name": "w1", "state": "loading", "models": [], "reason": "", "progress": 0.25}
            body = json.dumps({"status": "not ready", "missing": ["worker"], "workers": [worker]}).encode()
            self.send_response(200 if ready else 503); self.send_header("content-length", len(body))
            self.end_headers(); self.wfile.write(body)
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            good = self.headers["authorization"] == "Bearer " + key and asked["model"] == "smollm2-135m-instruct"
            if not good:
                body = b'{"error": {"message": "Incorrect API key provided."}}'
                self.send_response(401); self.send_header("content-length", len(body))
                self.end_headers(); self.wfile.write(body); return
            self.send_response(200); self.end_headers()
            for text in ("A river ", "is \\x1b[31mwater."):
                chunk = {"choices": [{"delta": {"content": text}}], "usage": None}
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")
            usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
            self.wfile.write(b": keep-alive\\n\\ndata: " + json.dumps(usage).encode() + b"\\n\\ndata: [DONE]\\n\\n")
    print(json.dumps({"event": "gateway", "nats": os.environ["EVENFLOW_NATS__URL"][:16]}), flush=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["EVENFLOW_GATEWAY__PORT"])), Door)
    server.serve_forever()
"""
WORKER = """
    import json, pathlib, signal, time
    time.sleep(0.8)
    pathlib.Path("worker-up").touch()
    print(json.dumps({"event": "worker"}), flush=True)
    signal.pause()
"""
MAIN = """
    import sys
    from gateway.up.command import Parts, UpOptions, run
    from gateway.up.process import ChildSpec
    from shared.settings import GatewaySettings, AdminSettings, NatsSettings, Settings
    GATEWAY, WORKER, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
    def child(name, group, code, environment):
        return ChildSpec(name=name, group=group, command=(sys.executable, "-c", code), environment=environment)
    async def key(settings, state):
        (state / "demo.key").write_text("ef-test\\n")
        return "ef-wrong" if "wrong-key" in flags else "ef-test"
    async def admin(settings, state):
        (state / "admin.password").write_text("secret\\n")
        return True
    port = next((int(flag) for flag in flags if flag.isdecimal()), 0)
    settings = Settings(gateway=GatewaySettings(port=port), admin=AdminSettings(port=0))
    parts = Parts(
        workers=lambda settings, environment: [child("worker-w1", "workers", WORKER, environment)],
        gateway=lambda settings, environment: child("gateway", "gateway", GATEWAY, environment),
        key=key,
        admin=admin,
    )
    sys.exit(run(settings, UpOptions(answer="no-answer" not in flags), parts=parts))
"""


@pytest.fixture
def up(tmp_path):
    """Return a function that starts `up` in an empty directory; what is still running at the end is killed."""
    started = []

    def start(*flags, gateway=GATEWAY, worker=WORKER):
        command = [sys.executable, "-c", *map(textwrap.dedent, (MAIN, gateway, worker)), *map(str, flags)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": ""}
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def read_until(process, what):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if what in line:
            return "".join(lines)
    raise AssertionError("ended early: " + "".join(lines))


def children(directory):
    records = (directory / ".evenflow" / "run").glob("*.json")
    return {record.stem: json.loads(record.read_text())["pid"] for record in records}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_an_empty_directory_becomes_a_served_answer_and_a_signal_a_clean_end(up, tmp_path):
    process = up()
    said = read_until(process, "serving until Ctrl-C")
    state = tmp_path / ".evenflow"
    assert "A river is \N{REPLACEMENT CHARACTER}[31mwater." in said  # an answer cannot steer the terminal
    assert "(9 prompt + 2 completion tokens, first after" in said
    assert "... waiting for: worker; w1 loading 25 % (" in said
    assert "$(cat .evenflow/demo.key)" in said
    assert re.search(
        r"^dashboard on http://127\.0\.0\.1:\d+, as admin with the password in \.evenflow/admin\.password$",
        said,
        re.MULTILINE,
    )
    assert "secret" not in said
    assert mode(state) == 0o700
    assert json.loads((state / "log" / "gateway.log").read_text()) == {"event": "gateway", "nats": "nats://127.0.0.1"}
    pids = children(tmp_path)
    assert set(pids) == {"nats", "worker-w1", "gateway"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert process.stdout.read().endswith("stopped\n")
    assert all(_born(pid) is None for pid in pids.values())
    again = up("no-answer")
    said = read_until(again, "serving until Ctrl-C")
    assert "river" not in said
    again.send_signal(signal.SIGINT)
    assert again.wait(30) == 0


def test_a_second_up_is_one_clear_line(up):
    first = up("no-answer")
    read_until(first, "serving until Ctrl-C")
    second = up()
    assert second.wait(30) == 2
    told = second.stdout.read()
    assert told == f"evenflow up: already running here (process {first.pid}): .evenflow/nats/lock is locked\n"
    assert first.poll() is None


async def test_killing_up_leaves_no_orphan_and_the_next_one_starts(up, tmp_path, eventually):
    process = up("no-answer")
    read_until(process, "serving until Ctrl-C")
    pids = children(tmp_path)
    process.kill()
    process.wait()
    assert len(pids) == 3
    await eventually(lambda: all(_born(pid) is None for pid in pids.values()))
    assert "ready on" in read_until(up("no-answer"), "serving until Ctrl-C")


def test_a_taken_port_is_one_clear_line(up, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = up(port)
        assert process.wait(30) == 2
    line = f"evenflow up: 127.0.0.1:{port}: the port is taken by another program; EVENFLOW_GATEWAY__PORT=PORT chooses another\n"
    assert process.stdout.read() == line
    assert list(tmp_path.iterdir()) == []  # what the failed start had made is gone


def test_a_configuration_that_cannot_work_stops_everything_and_says_why(up, tmp_path):
    process = up(worker="import sys; print('workers[0].path: no such file', file=sys.stderr); sys.exit(78)")
    assert process.wait(30) == 78
    said = process.stdout.read()
    assert "worker-w1 cannot run as configured (exit status 78)" in said
    assert "worker-w1 | workers[0].path: no such file" in said
    assert children(tmp_path) == {}


def test_a_refused_first_answer_is_told_and_serving_goes_on(up):
    process = up("wrong-key")
    said = read_until(process, "serving until Ctrl-C")
    assert "the first answer was refused: 401 Incorrect API key provided.; still serving" in said
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_signal_before_anything_is_ready_ends_cleanly(up, tmp_path):
    process = up(worker="import signal; signal.pause()")
    read_until(process, "w1 loading")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert children(tmp_path) == {}


def test_a_reader_that_goes_away_does_not_end_the_service(up, tmp_path):
    process = up("no-answer")
    read_until(process, "NATS is up")
    process.stdout.close()
    log = tmp_path / ".evenflow" / "log" / "gateway.log"
    with contextlib.suppress(subprocess.TimeoutExpired):
        raise AssertionError(f"ended with {process.wait(1)}")
    assert log.exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write everywhere")
def test_a_directory_of_someone_else_is_one_clear_line(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / ".evenflow").mkdir(mode=0o700)
    code = "import sys; from gateway.up.command import run; from shared.settings import Settings; sys.exit(run(Settings()))"
    other = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if not other:
        (tmp_path / ".evenflow").chmod(0o500)
    done = subprocess.run(
        [*other, sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("evenflow up: .evenflow")
    assert "permission denied" in done.stderr
