"""`evenflow admin`: passwords come by a prompt or standard input, secrets are shown once."""

import json
import os
import re

import click
import pytest
from argon2 import PasswordHasher
from click.testing import CliRunner

from gateway.cli import main
from gateway.cli_admin import admin
from gateway.core.admin_tokens import well_formed
from gateway.store import store as stores
from gateway.store.passwords import Passwords

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVENFLOW_")]:
        monkeypatch.delenv(name)
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(stores, "Passwords", lambda: Passwords(cheap))


def run(*arguments, status=0, given=None):
    result = CliRunner().invoke(main, ["admin", *arguments], input=given, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def test_the_life_of_an_admin():
    run("create", "ada", given=PASSWORD + "\n")
    assert run("create", "ada", given=PASSWORD, status=1).stderr == "evenflow: there is an admin named ada already\n"
    assert "at least 12 characters" in run("create", "bob", given="short\n", status=1).stderr
    assert "no admin 'bob'" in run("password", "bob", given=PASSWORD, status=1).stderr
    run("password", "ada", given="another horse battery\n")
    (disabled,) = json.loads(run("disable", "ada", "--json").stdout)
    assert (disabled["disabled_at"] >= disabled["created_at"], disabled["version"]) == (True, 3)
    assert re.search(r"ada +[0-9a-f-]{36} +20\S+ \S+ +20", run("list").stdout)
    (enabled,) = json.loads(run("enable", "ada", "--json").stdout)
    assert enabled["disabled_at"] is None
    assert set(enabled) == {"id", "name", "created_at", "disabled_at", "version"}


def test_no_command_takes_a_password_from_the_command_line():
    for command in admin.commands.values():
        names = {option for param in command.params for option in param.opts if isinstance(param, click.Option)}
        assert not {name for name in names if "pass" in name or "secret" in name}


def test_the_life_of_a_token():
    made = run("token", "create", "ci", "--scope", "read", "--scope", "keys", "--expires-in", "12h")
    secret = made.stdout.rstrip("\n")
    assert well_formed(secret)
    listed = run("token", "list").stdout
    assert re.search(rf"ci +{secret[:10]}\.\.\. .* read,keys +- +valid until 20", listed)
    assert secret not in listed
    assert "revoked" in run("token", "revoke", "ci").stdout
    again = json.loads(run("token", "create", "ci", "--scope", "audit", "--json").stdout)
    assert (again["scopes"], well_formed(again["token"])) == (["audit"], True)
    assert "Missing option" in run("token", "create", "x", status=2).stderr
    assert "is not one of" in run("token", "create", "x", "--scope", "people", status=2).stderr
