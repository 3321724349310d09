"""`evenflow nats`, as an operator types it."""

import os
import re

import pytest
from click.testing import CliRunner

from gateway.cli import main


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVENFLOW_")]:
        monkeypatch.delenv(name)


def run(*arguments, status=0, **variables):
    result = CliRunner().invoke(main, ["nats", *arguments], env=variables, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


def test_from_nothing_to_a_bus_with_one_more_worker_and_back(tmp_path):
    said = run("init", "--dir", "bus", "--host", "bus.example", "--host", "10.0.0.7", EVENFLOW_WORKERS="2")
    assert "nats-server -c server.conf" in said
    assert re.findall(r"^  (\S+)$", said, re.MULTILINE) == ["gateway-g1", "provision", "worker-w1", "worker-w2"]
    assert "needs the new identities.conf and a SIGHUP" in said
    said = run("add-worker", "w9", "--dir", "bus")
    assert "EVENFLOW_NATS__IDENTITIES=" in said
    run("add-gateway", "g2", EVENFLOW_NATS__DIRECTORY="bus")
    listed = run("list", "--dir", "bus")
    assert re.findall(r"^(\w+) +(\S+) +U[A-Z2-7]{55}$", listed, re.MULTILINE) == [
        ("gateway", "g1"),
        ("gateway", "g2"),
        ("provision", "provision"),
        ("worker", "w1"),
        ("worker", "w2"),
        ("worker", "w9"),
    ]
    assert "w9 is removed" in run("remove", "w9", "--dir", "bus")
    assert "w9" not in run("list", "--dir", "bus")
    for secret in (tmp_path / "bus" / "identities").glob("*/nkey.seed"):
        assert secret.read_text().strip() not in said + listed


def test_mistakes_are_one_line_and_a_status():
    assert "holds no identities yet" in run("add-worker", "w1", status=1)
    assert "Missing option '--host'" in run("init", "--dir", "bus", status=2)
    run("init", "--dir", "bus", "--host", "localhost")
    assert "is the name of a gateway already" in run("add-worker", "g1", "--dir", "bus", status=1)
    assert "is no name" in run("add-gateway", "G 1", "--dir", "bus", status=1)
    assert "no gateway or worker 'nobody'" in run("remove", "nobody", "--dir", "bus", status=1)
