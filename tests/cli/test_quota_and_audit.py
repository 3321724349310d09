"""`evenflow quota`, `evenflow tenant` as far as it is new, and `evenflow audit`: what the API does, by command."""

import json
import os
import re
import sqlite3

import pytest
from click.testing import CliRunner

from gateway.cli import main

STORE = ".evenflow/evenflow.db"


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVENFLOW_")]:
        monkeypatch.delenv(name)


def run(*arguments, status=0):
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def test_tenants_with_calendars_by_search():
    run("tenant", "create", "acme", "--zone", "Europe/Berlin")
    run("tenant", "create", "other")
    (row,) = json.loads(run("tenant", "list", "--search", "cm", "--json").stdout)
    assert (row["name"], row["zone"]) == ("acme", "Europe/Berlin")
    assert "Asia/Tokyo" in run("tenant", "zone", "acme", "Asia/Tokyo").stdout
    assert "no time zone" in run("tenant", "zone", "acme", "Mars", status=1).stderr


def test_limits_are_set_one_by_one_shown_and_cleared():
    run("tenant", "create", "acme", "--max-streams", "3")
    run("key", "create", "acme", "ci")
    (row,) = json.loads(run("quota", "set", "acme", "--tokens", "1000", "--strict", "--json").stdout)
    assert {name: row["limits"][name] for name in ("streams", "tokens", "strict")} == {
        "streams": 3, "tokens": 1000, "strict": True
    }  # fmt: skip
    run("quota", "set", "acme", "--streams", "0")
    run("quota", "set", "acme", "--key", "ci", "--model", "org/m", "--requests", "5")
    own, of_key = json.loads(run("quota", "show", "acme", "--json").stdout)
    assert (own["limits"]["streams"], own["limits"]["tokens"], own["version"]) == (0, 1000, 3)
    assert (of_key["model"], of_key["limits"]["requests"]) == ("org/m", 5)
    assert re.search(r"all +all +- +1000 .* yes +20", run("quota", "show", "acme").stdout)
    run("quota", "clear", "acme", "--key", "ci", "--model", "org/m")
    assert "no limits" in run("quota", "clear", "acme", "--model", "none", status=1).stderr
    assert "at least one limit" in run("quota", "set", "acme", status=2).stderr
    assert "no tenant" in run("quota", "set", "nobody", "--tokens", "1", status=1).stderr
    assert "no key" in run("quota", "set", "acme", "--key", "none", "--tokens", "1", status=1).stderr


def test_the_log_is_listed_and_holds():
    run("tenant", "create", "acme")
    run("tenant", "disable", "acme")
    (newest, first) = json.loads(run("audit", "list", "--json").stdout)
    assert (first["action"], newest["action"]) == ("tenant.create", "tenant.disable")
    assert json.loads(newest["before"])["disabled_at"] is None
    assert (newest["actor_kind"], newest["source"]) == ("local", "local")
    assert re.search(r"2 +20\S+ \S+ +local .* tenant.disable +acme", run("audit", "list").stdout)
    assert len(json.loads(run("audit", "list", "--action", "tenant.create", "--json").stdout)) == 1
    assert len(json.loads(run("audit", "list", "--before", "2", "--json").stdout)) == 1
    said = run("audit", "verify").stdout
    head = re.fullmatch(r"2 entries hold; head (2:[0-9a-f]{64})\n", said)[1]
    run("audit", "verify", "--head", head)
    assert "no number" not in run("audit", "verify", "--head", "2:ff", status=2).stderr


@pytest.mark.parametrize(
    ("tampering", "why"),
    [
        ("UPDATE audit SET actor_name = 'somebody else' WHERE sequence = 2", "entry 2 is not as it was written"),
        ("DELETE FROM audit WHERE sequence = 2", "entry 2 is missing"),
        ("DELETE FROM audit WHERE sequence = 3", "the log ends at entry 2; entry 3 was there"),
    ],
)
def test_tampering_is_found_with_the_first_broken_entry(tampering, why):
    for name in ("one", "two", "three"):
        run("tenant", "create", name)
    head = json.loads(run("audit", "verify", "--json").stdout)["head"]
    with sqlite3.connect(STORE) as store:
        for verb in ("update", "delete"):
            store.execute(f"DROP TRIGGER audit_no_{verb}")
        store.execute(tampering)
    store.close()
    noted = f"{head['sequence']}:{head['seal']}"
    assert why in run("audit", "verify", "--head", noted, status=1).stderr
    broken = json.loads(run("audit", "verify", "--head", noted, "--json", status=1).stdout)["broken"]
    assert broken["why"].startswith(why)
