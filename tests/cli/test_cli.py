import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import types

import pytest
from click.testing import CliRunner
from msgspec.structs import asdict

from gateway.cli import main, up_overrides
from gateway.core.keys import well_formed
from shared.errors import BusError, StartError
from shared.settings_load import load


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVENFLOW_")]:
        monkeypatch.delenv(name)


def run(*arguments, status=0, **variables):
    result = CliRunner().invoke(main, arguments, env=variables, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def test_help_and_version_import_nothing_slow():
    code = (
        "import sys\nfrom gateway.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit as end: assert end.code == 0\n"
        "slow = {'asyncio', 'sqlalchemy', 'alembic', 'msgspec', 'litestar', 'nats', 'uvicorn', 'structlog', 'httpx'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    for argument in ("--help", "--version"):
        ran = subprocess.run(
            [sys.executable, "-c", code, argument], capture_output=True, text=True, check=True, timeout=60
        )
        assert ran.stdout.splitlines()[-1] == "[]"
        assert "venflow" in ran.stdout


def test_the_life_of_a_key():
    run("tenant", "create", "acme", "--max-streams", "3")
    made = run("key", "create", "acme", "ci", "--expires-in", "12h")
    assert well_formed(made.stdout.rstrip("\n"))
    assert "shown only now" in made.stderr
    listed = run("key", "list").stdout
    assert re.search(rf"acme +ci +{made.stdout[:9]}\.\.\. .* valid until 20\d\d-", listed)
    assert made.stdout.strip() not in listed
    assert "revoked" in run("key", "revoke", "ci", "--tenant", "acme").stdout
    assert "revoked" in run("key", "list", "acme").stdout


def test_json_is_json():
    (tenant,) = json.loads(run("tenant", "create", "acme", "--json").stdout)
    key = json.loads(run("key", "create", "acme", "ci", "--json").stdout)
    assert key["tenant_id"] == tenant["id"]
    assert well_formed(key.pop("key"))
    assert json.loads(run("key", "list", "--json").stdout) == [key]
    (disabled,) = json.loads(run("tenant", "disable", "acme", "--json").stdout)
    assert disabled["disabled_at"] >= tenant["created_at"]
    (enabled,) = json.loads(run("tenant", "enable", "acme", "--json").stdout)
    assert enabled == tenant | {"version": 3} == json.loads(run("tenant", "list", "--json").stdout)[0]


def test_errors_are_lines_and_statuses():
    assert run("key", "list", "nobody", status=1).stderr == "evenflow: there is no tenant 'nobody'\n"
    wrong = run("key", "list", status=2, EVENFLOW_GATEWAY__PORT="x", EVENFLOW_ADMIN__PORT="y")
    assert [line.split(": ")[:2] for line in wrong.stderr.splitlines()] == [
        ["evenflow", "gateway.port"],
        ["evenflow", "admin.port"],
    ]
    assert "No such file" in run("gateway", "--config", "nope.toml", status=2).stderr


@pytest.mark.parametrize("given", ["5", "0d", "1y", "-1d", "٣d", ""])
def test_a_duration_has_a_unit(given):
    run("tenant", "create", "acme")
    assert "not a duration" in run("key", "create", "acme", "k", "--expires-in", given, status=2).stderr


def test_gateway_runs_with_the_settings(monkeypatch):
    seen = []
    monkeypatch.setitem(sys.modules, "gateway.serve", types.SimpleNamespace(run=seen.append))
    run("gateway", EVENFLOW_GATEWAY__PORT="1234")
    assert seen[0].gateway.port == 1234


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BusError("no bus"), "evenflow: no bus\n"),
        (
            ExceptionGroup("of a task group", [BusError("a"), ExceptionGroup("inner", [StartError("b")])]),
            "evenflow: a\nevenflow: b\n",
        ),
    ],
)
def test_errors_of_a_running_gateway_are_told_the_same_way(monkeypatch, error, told):
    def fail(_):
        raise error

    monkeypatch.setitem(sys.modules, "gateway.serve", types.SimpleNamespace(run=fail))
    assert run("gateway", status=1).stderr == told


def test_a_bug_is_not_hidden(monkeypatch):
    def fail(_):
        raise ZeroDivisionError

    monkeypatch.setitem(sys.modules, "gateway.serve", types.SimpleNamespace(run=fail))
    with pytest.raises(ZeroDivisionError):
        run("gateway")


def test_up_turns_its_flags_into_settings(monkeypatch):
    seen = []
    options = types.SimpleNamespace(UpOptions=lambda **flags: flags, run=lambda *given: seen.append(given) or 7)
    monkeypatch.setitem(sys.modules, "gateway.up.command", options)
    flags = "--engine null --null-mode pace --null-rate 9.5 --null-tokens 11 --workers 3 --port 0 --admin-port 12 --no-answer"
    run("up", *flags.split(), status=7)
    ((settings, given),) = seen
    assert given == {"answer": False, "tls": False}
    assert [(w.name, w.engine, w.model, w.null_mode, w.null_rate, w.null_tokens) for w in settings.workers] == [
        (f"w{i}", "null", "null", "pace", 9.5, 11) for i in (1, 2, 3)
    ]
    assert (settings.gateway.port, settings.admin.port) == (0, 12)


def test_flags_that_are_not_given_say_nothing():
    assert up_overrides() == {}


def test_flags_of_up_fit_its_command():
    """The real options take what the command line gives them."""
    from gateway.up.command import UpOptions

    assert asdict(UpOptions(answer=False))["answer"] is False
    assert load(None, {}, up_overrides(workers=0)).settings.workers == ()


def test_usage_is_listed_by_tenant_newest_first():
    (tenant,) = json.loads(run("tenant", "create", "acme", "--json").stdout)
    assert json.loads(run("usage", "list", "--json").stdout) == []
    row = "'{0}', {1}, {1}, 'asked', '{2}', 'k', 'm', '1', 'stop', 9, 0, 5, 6, 0, 0, 0.5, 1.0, 2.0, 3.0, 9"
    with contextlib.closing(sqlite3.connect(".evenflow/evenflow.db")) as store, store:
        store.execute(f"INSERT INTO usage VALUES ({row.format('a', 1, tenant['id'])})")
        store.execute(f"INSERT INTO usage VALUES ({row.format('b', 2, 'another')})")
    listed = json.loads(run("usage", "list", "--json").stdout)
    assert [(one["id"], one["charged"], one["generated"]) for one in listed] == [("b", 5, 6), ("a", 5, 6)]
    assert [one["id"] for one in json.loads(run("usage", "list", "--json", "--tenant", "acme").stdout)] == ["a"]
    shown = run("usage", "list", "--most", "1").stdout.splitlines()
    assert len(shown) == 2
    assert shown[1].split()[-4:] == ["stop", "9", "5", "6"]
    assert "there is no tenant" in run("usage", "list", "--tenant", "nobody", status=1).stderr
