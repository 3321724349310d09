"""`evenflow key`, as an operator uses it."""

import json
import os
import re
import time

import pytest
from click.testing import CliRunner

from gateway import cli_keys
from gateway.cli import main
from gateway.core import keys


@pytest.fixture(autouse=True)
def acme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVENFLOW_")]:
        monkeypatch.delenv(name)
    run("tenant", "create", "acme")


def run(*arguments, status=0):
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def listed():
    return json.loads(run("key", "list", "--json").stdout)


def test_a_key_with_rules():
    made = run(
        *("key", "create", "acme", "ci", "--scope", "inference", "--model", "llama-*", "--model", "m"),
        *("--network", "10.0.0.0/8", "--network", "2001:DB8::/32", "--expires-in", "30m"),
    )
    assert keys.well_formed(made.stdout.rstrip("\n"))
    (row,) = listed()
    assert (row["scopes"], row["models"]) == (["inference"], ["llama-*", "m"])
    assert row["networks"] == ["10.0.0.0/8", "2001:db8::/32"]
    assert 0 < row["expires_at"] - time.time() * 1000 <= 1_800_000
    shown = run("key", "list").stdout
    assert "inference; llama-* m; 10.0.0.0/8 2001:db8::/32" in shown


def test_rules_are_changed_and_taken_away():
    run("key", "create", "acme", "ci", "--model", "m")
    run("key", "update", "ci", "--model", "n", "--network", "192.0.2.7", "--scope", "usage", "--expires-in", "1d")
    (row,) = listed()
    assert (row["models"], row["networks"], row["scopes"], row["version"]) == (["n"], ["192.0.2.7/32"], ["usage"], 2)
    run("key", "update", "ci", "--tenant", "acme", "--all-models", "--any-network", "--never-expires")
    (row,) = listed()
    assert (row["models"], row["networks"], row["scopes"], row["expires_at"]) == (None, None, ["usage"], None)


@pytest.mark.parametrize(
    ("options", "told", "status"),
    [
        ((), "nothing to change", 2),
        (("--model", "m", "--all-models"), "--all-models contradicts", 2),
        (("--expires-in", "1d", "--never-expires"), "--never-expires contradicts", 2),
        (("--scope", "admin"), "'admin' is not one of", 2),
        (("--network", "10.1.2.3/8"), "evenflow: '10.1.2.3/8' has bits beyond its prefix", 1),
    ],
)
def test_what_cannot_be_changed_is_told(options, told, status):
    run("key", "create", "acme", "ci")
    assert told in run("key", "update", "ci", *options, status=status).stderr


def test_rotation_shows_the_new_key_once_and_when_the_old_one_ends():
    old = run("key", "create", "acme", "ci", "--model", "m").stdout
    made = run("key", "rotate", "ci", "--overlap", "2h")
    assert keys.well_formed(made.stdout.rstrip("\n"))
    assert made.stdout != old
    assert "goes on for 2 h at most" in made.stderr
    before, after = sorted(listed(), key=lambda row: row["replaced_by"] is None)
    assert before["replaced_by"] == after["id"]
    assert 0 < before["expires_at"] - time.time() * 1000 <= 7_200_000
    assert (after["name"], after["models"], after["expires_at"]) == ("ci", ["m"], None)
    shown = run("key", "list").stdout
    assert re.search(r"replaced, valid until 20\d\d-", shown)
    assert made.stdout.strip() not in shown


def test_rotation_can_end_the_old_key_at_once():
    run("key", "create", "acme", "ci")
    made = json.loads(run("key", "rotate", "ci", "--overlap", "0", "--json").stdout)
    assert keys.well_formed(made["key"])
    (old,) = [row for row in listed() if row["id"] != made["id"]]
    assert old["expires_at"] <= time.time() * 1000
    assert "not a duration" in run("key", "rotate", "ci", "--overlap", "soon", status=2).stderr
    assert "replaced, expired" in run("key", "list").stdout


def test_the_command_line_knows_all_scopes_without_importing_what_knows_them():
    assert cli_keys.SCOPES == keys.SCOPES
