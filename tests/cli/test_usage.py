"""`evenflow usage` at the terminal: what it adds up, how it is printed, and what it refuses."""

import asyncio
import csv
import io
import json
import os
from datetime import date

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gateway.cli import main
from gateway.core.ledger import Closed
from gateway.store.rows import Actor, Progress
from gateway.store.store import Store
from shared.settings import Settings
from tests.store.raw import run as sql
from tests.usage.records import closed

BY = Actor("local", name="test")
DAY = date(2026, 3, 1)
WANTED = Settings()


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVENFLOW_")]:
        monkeypatch.delenv(name)


def run(*arguments, status=0):
    result = CliRunner().invoke(main, ("usage", *arguments), catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def of(rid, charged, tenant, *, key="k", model="m", day=DAY):
    record = replace(closed(rid, 1, charged), tenant=tenant, key=key, model=model, day=day.toordinal())
    return Closed(1, 1_772_366_400_000, record)


@pytest.fixture
def filled():
    """Two tenants, a key with a name, and a model whose name is a formula."""

    async def fill():
        store = await Store.open(WANTED)
        acme = await store.tenants.create("acme", by=BY)
        key, _ = await store.keys.create("acme", "laptop", by=BY)
        batch = [
            of("a", 5, acme.id, key=key.id),
            of("b", 6, acme.id, model="=1+1", day=date(2026, 3, 2)),
            of("c", 7, "gone"),
        ]
        await store.usage.record(batch, Progress(3, 9, 4))
        await store.close()
        return acme, key

    return asyncio.run(fill())


def test_a_report_is_a_table_by_tenant_unless_told_otherwise(filled):
    head, *lines = run("report").stdout.splitlines()
    assert head.split() == ["tenant", "requests", "failed", "prompt", "charged", "device_seconds"]
    assert sorted(line.split()[0] for line in lines) == ["acme", "gone"]
    assert sum(int(line.split()[4]) for line in lines) == 18


def test_filters_and_days(filled):
    def charged(*options):
        return [group["charged"] for group in json.loads(run("report", "--json", *options).stdout)]

    assert charged("--by", "") == [18]
    assert charged("--by", "day") == [12, 6]
    assert charged("--by", "day", "--from", "2026-03-02") == [6]
    assert charged("--by", "day", "--to", "2026-03-01", "--tenant", "acme") == [5]
    assert charged("--by", "", "--tenant", "acme", "--key", "laptop") == [5]
    assert charged("--by", "model", "--model", "=1+1") == [6]
    assert charged("--by", "tenant", "--from", "2027-01-01") == []


def test_csv_is_safe_to_open(filled):
    out = run("report", "--by", "tenant,key,model,day", "--csv").stdout_bytes.decode()
    assert out.count("\r\n") == 4
    assert "\n" not in out.replace("\r\n", "")
    lines = list(csv.DictReader(io.StringIO(out, newline="")))
    assert {line["model"] for line in lines} == {"m", "'=1+1"}
    assert {line["key"] for line in lines} == {"laptop", ""}
    assert {line["day"] for line in lines} == {"2026-03-01", "2026-03-02"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--by", "tenant,colour"), "colour: it can be any of tenant, key, model, version, day"),
        (("--from", "yesterday"), "'yesterday' is not a day such as 2026-03-01"),
        (("--json", "--csv"), "choose one"),
    ],
)
def test_what_it_cannot_add_up_is_refused(options, told):
    assert told in run("report", *options, status=2).stderr


def test_a_tenant_that_is_not_there_is_named(filled):
    assert "there is no tenant 'nobody'" in run("report", "--tenant", "nobody", status=1).stderr
    assert "there is no key 'none'" in run("report", "--key", "none", status=1).stderr


def test_sums_are_compared_with_rows_without_nats(filled):
    assert run("verify", "--no-journal").stdout.splitlines()[-1] == "No differences"
    asyncio.run(sql(WANTED, "UPDATE usage_days SET charged = 9 WHERE charged = 5"))
    lines = run("verify", "--no-journal", status=1).stdout.splitlines()
    assert any("charged: the rows add up to 5, kept is 9" in line for line in lines)
    assert lines[-1] == "1 difference"
    assert json.loads(run("verify", "--no-journal", "--json", status=1).stdout)["different"] == 1


def test_without_a_server_it_says_what_to_set():
    assert "nats.url: is not set, and `evenflow up` has no server in .evenflow/nats" in run("verify", status=2).stderr
