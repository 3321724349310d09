"""Usage over the operators' API: sums in pages, CSV, single requests."""

import csv
import io
from datetime import date

import pytest
from msgspec.structs import replace

from gateway.core.ledger import Closed
from gateway.store.rows import Progress
from tests.admin.conftest import BY
from tests.usage.records import closed

V1 = "/admin/v1"
DAY = date(2026, 3, 1)


@pytest.fixture
def desk_url(store_url):
    return store_url


@pytest.fixture
async def asked(desk):
    """Two tenants with usage of two days and two models, and a client who may read it."""
    ids = {name: (await desk.store.tenants.create(name, by=BY)).id for name in ("acme", "other")}
    key, _ = await desk.store.keys.create("acme", "ci", by=BY)
    rows = []
    for number in range(12):
        close = replace(
            closed(f"r{number:02}", 2, number),
            tenant=ids["acme" if number % 3 else "other"],
            key=key.id if number % 3 else "gone",
            model=("=m", "n")[number % 2],
            day=DAY.toordinal() + number // 6,
        )
        rows.append(Closed(number + 1, 1_772_366_400_000 + number, close))
    await desk.store.usage.record(rows, Progress(12, 9, 4))
    async with await desk.token("usage") as client:
        yield client


async def everything(client, path, **params):
    found, after = [], None
    while True:
        answer = await client.get(V1 + path, params=params | ({"after": after} if after else {}))
        assert answer.status_code == 200, answer.text
        found += answer.json()["data"]
        if (after := answer.json()["next"]) is None:
            return found


async def test_sums_by_whatever_is_asked_for(asked):
    rows = await everything(asked, "/usage")
    assert {row["tenant"]: (row["requests"], row["charged"]) for row in rows} == {"acme": (8, 48), "other": (4, 18)}
    (whole,) = await everything(asked, "/usage", by=["day"], **{"from": "2026-03-02"})
    assert (whole["day"], whole["requests"], whole["charged"]) == ("2026-03-02", 6, 51)
    by = ["day", "model", "tenant"]
    pages = await everything(asked, "/usage", by=by, limit=1)
    assert pages == await everything(asked, "/usage", by=by)
    assert sum(row["charged"] for row in pages) == 66
    assert [row["key"] for row in await everything(asked, "/usage", by=["key"], tenant="acme")] == ["ci"]
    assert [row["requests"] for row in await everything(asked, "/usage", by=["tenant"], tenant="acme", key="ci")] == [8]
    assert (await asked.get(f"{V1}/usage", params={"tenant": "nobody"})).status_code == 404
    assert (await asked.get(f"{V1}/usage", params={"by": "colour"})).status_code == 400
    assert (await asked.get(f"{V1}/usage", params={"from": "yesterday"})).status_code == 400


async def test_csv_is_the_same_whole_and_harmless(asked, monkeypatch):
    monkeypatch.setattr("gateway.admin.usage._AT_ONCE", 1)
    answer = await asked.get(f"{V1}/usage.csv", params={"by": ["tenant", "model"]})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    assert "usage.csv" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    shown = await everything(asked, "/usage", by=["tenant", "model"])
    assert [(row["tenant"], row["charged"]) for row in rows] == [(row["tenant"], str(row["charged"])) for row in shown]
    assert {row["model"] for row in rows} == {"'=m", "n"}, "no text becomes a formula"


async def test_requests_newest_first(asked):
    rows = await everything(asked, "/usage/requests", limit=5)
    assert [row["id"] for row in rows] == [f"r{number:02}" for number in reversed(range(12))]
    assert len(await everything(asked, "/usage/requests", tenant="acme", limit=3)) == 8
