"""Usage as operators and tenants see it: reports, a tenant's own, a comparison that finds what was doctored, one store."""

import asyncio
import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
import time

import pytest

from shared import subjects, wire
from tests.e2e.clients import PATIENCE_S, PROVE, Call, chat, command, eventually, watching
from tests.e2e.stack import ROOT, running
from tests.e2e.test_usage import finished, rows
from tests.usage.outage import outage

AWAY_S = 600.0 if PROVE else 12.0
"""How long the database is away: past the 10 s in which SQLite gives a question up."""
pytestmark = pytest.mark.timeout(AWAY_S + 240)


@pytest.fixture(scope="module")
def null(tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("ledger"),
        LIMITS__BAD_KEYS_PER_MINUTE="100000",  # keys are asked for until they are known
        WORKERS__0__ENGINE="null",
    ) as stack:
        yield stack


def database(stack):
    return stack.directory / ".evenflow" / "evenflow.db"


def sql(stack, statement, *values):
    connection = sqlite3.connect(database(stack), timeout=30)
    try:
        with connection:
            return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


async def served(stack, count):
    """Answers, streamed, until each has its row: tokens of prompts and answers as HTTP reported them."""
    tokens = 0
    for _ in range(count):
        call = await Call.post(stack, chat("x", model="null", max_tokens=9, stream_options={"include_usage": True}))
        tokens += (await finished(call))[0]
        await written(stack, call)
    return tokens


async def written(stack, call):
    async def there():
        return call.headers["x-request-id"] in rows(stack)

    await eventually(there, "its row")


async def own(watch, stack, key=""):
    answer = await watch.http.get(f"{stack.url}/v1/usage", headers={"authorization": f"Bearer {key or stack.key}"})
    return answer.status_code, answer.json()


def verified(stack):
    """Exit status and lines of `evenflow usage verify`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    ran = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "usage", "verify"],
        cwd=stack.directory, env={**environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    return ran.returncode, ran.stdout.splitlines() + ran.stderr.splitlines()


async def test_reports_and_ones_own_usage_say_what_was_served(null):
    async with watching(null) as watch:
        tokens = await served(null, 4)
        assert tokens == 36
        report = await asyncio.to_thread(command, null, "usage", "report", "--by", "tenant,model", "--json")
        [group] = json.loads(report)
        assert (group["tenant"], group["model"], group["requests"], group["charged"]) == ("demo", "null", 4, tokens)
        text = await asyncio.to_thread(command, null, "usage", "report", "--by", "tenant,key,version", "--csv")
        [line] = csv.DictReader(io.StringIO(text))
        assert (line["tenant"], line["requests"], line["charged"]) == ("demo", "4", str(tokens))
        assert float(line["device_seconds"]) == pytest.approx(group["device_seconds"])
        nothing = await asyncio.to_thread(command, null, "usage", "report", "--to", "2020-01-01", "--json")
        assert json.loads(nothing) == []

        status, body = await own(watch, null)
        assert status == 200
        assert body["tenant"]["name"] == "demo"
        days = body["days"]  # two around midnight
        assert {model["model"] for day in days for model in day["models"]} == {"null"}
        assert (sum(day["requests"] for day in days), sum(day["completion_tokens"] for day in days)) == (4, tokens)
        assert all(day["total_tokens"] == day["prompt_tokens"] + day["completion_tokens"] for day in days)


async def test_ones_own_usage_is_for_keys_with_that_scope_and_for_nobody_else(null):
    async with watching(null) as watch:
        await asyncio.to_thread(command, null, "tenant", "create", "other")
        may = await asyncio.to_thread(command, null, "key", "create", "other", "may", "--scope", "usage")
        may_not = await asyncio.to_thread(command, null, "key", "create", "other", "not", "--scope", "inference")

        async def known():
            return {(await own(watch, null, key))[0] for key in (may, may_not)} == {200, 403}

        await eventually(known, "the keys are known")
        status, body = await own(watch, null, may)
        assert (body["tenant"]["name"], body["days"], body["month"]["requests"]) == ("other", [], 0)
        status, body = await own(watch, null, may_not)
        assert (status, body["error"]["code"]) == (403, "scope_missing")
        status, body = await own(watch, null, "ef-nobody")
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_a_doctored_row_is_found_beside_a_running_gateway(null):
    await served(null, 2)
    status, lines = await asyncio.to_thread(verified, null)
    assert (status, lines[-1]) == (0, "No differences"), lines
    assert lines[0].startswith("Compared from record 1 of "), lines
    [(rid, charged)] = sql(null, "SELECT id, charged FROM usage ORDER BY id LIMIT 1")
    sql(null, "UPDATE usage SET charged = charged + 5 WHERE id = ?", rid)
    status, lines = await asyncio.to_thread(verified, null)
    assert status == 1
    assert f"altered: {rid}: charged: the record says {charged}, the row {charged + 5}" in lines
    assert any(line.startswith("sums: ") for line in lines)
    sql(null, "UPDATE usage SET charged = charged - 5 WHERE id = ?", rid)
    assert (await asyncio.to_thread(verified, null))[0] == 0


async def test_a_gateway_with_another_store_makes_both_not_ready(null):
    """One of them would know keys, limits and usage that the other does not. It is over once one is gone."""
    async with watching(null) as watch:
        await watch.ready()
        stranger = await null.join("gateway", "g9")

        async def beat(store_id):
            await stranger.publish(subjects.ghb("g9"), wire.encode(wire.Ghb(gep="e9", store_id=store_id, n=1)))
            await stranger.barrier()

        async def not_ready():
            await beat("another")
            return await watch.status("/ready") == 503

        try:
            await eventually(not_ready, "the other store is noticed")
            body = (await watch.http.get(f"{null.url}/ready")).json()
            assert body["missing"] == ["one store"]
            assert any("g9 and g1 are on one bus with different stores" in concern for concern in body["concerns"])
            [(ours,)] = sql(null, "SELECT store_id FROM identity")
            await beat(ours)
            await watch.ready()
            await beat("another")
        finally:
            await stranger.close()
        await watch.ready(within_s=60)


async def test_while_the_database_is_away_keys_work_usage_waits_and_nothing_is_lost(null):
    async with watching(null) as watch:
        await watch.ready()
        before = len(sql(null, "SELECT id FROM usage"))
        calls = []
        with outage(database(null)):
            until = time.monotonic() + AWAY_S
            while time.monotonic() < until:
                call = await Call.post(null, chat("x", model="null", max_tokens=5))
                assert (await call.finish()).done
                calls.append(call)
                await asyncio.sleep(0.5)
            assert await watch.status("/ready") == 200, "requests are served"
            status, body = await own(watch, null)
            assert (status, body.get("error", {}).get("code")) == (503, "usage_unavailable")
        print(f"\ndatabase away for {AWAY_S:.0f} s: {len(calls)} answers, all of their usage written afterwards")
        for call in calls:
            await written(null, call)
        assert len(sql(null, "SELECT id FROM usage")) == before + len(calls)
        status, lines = await asyncio.to_thread(verified, null)
        assert status == 0, lines

        async def shown():
            status, body = await own(watch, null)
            return status == 200 and sum(day["requests"] for day in body["days"]) == before + len(calls)

        await eventually(shown, "its own usage, which may be some seconds old")
