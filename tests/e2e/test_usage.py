"""However a request ends, it stands in the store exactly once, within one check of what its client received."""

import asyncio
import json
import os
import signal
import sqlite3
import time

import pytest

from tests.e2e.clients import PROVE, Call, chat, command, eventually, idle, watching
from tests.e2e.stack import running

pytestmark = pytest.mark.timeout(900 if PROVE else 240)

RATE = 100
BOUND = 64
"""Tokens of one check; two seconds are more at this rate."""
EACH = 20 if PROVE else 4


@pytest.fixture(scope="module")
def null(tmp_path_factory):
    """Streams of a hundred tokens a second."""
    with running(
        tmp_path_factory.mktemp("usage"),
        WORKERS="2",
        WORKERS__0__ENGINE="null",
        WORKERS__0__NULL_MODE="pace",
        WORKERS__0__NULL_RATE=str(RATE),
        WORKERS__0__NULL_TOKENS="1500",
        WORKERS__0__SLOTS="32",
        WORKERS__1__ENGINE="null",
        WORKERS__1__NULL_MODE="pace",
        WORKERS__1__NULL_RATE=str(RATE),
        WORKERS__1__NULL_TOKENS="1500",
        WORKERS__1__SLOTS="32",
    ) as stack:
        yield stack


def rows(stack) -> dict[str, list[dict]]:
    """All rows by the request id that the client knows; a list each, so that two would be seen."""
    connection = sqlite3.connect(stack.directory / ".evenflow" / "evenflow.db")
    try:
        cursor = connection.execute("SELECT * FROM usage")
        names = [column[0] for column in cursor.description]
        found: dict[str, list[dict]] = {}
        for row in cursor.fetchall():
            record = dict(zip(names, row, strict=True))
            found.setdefault(record["request_id"], []).append(record)
        return found
    finally:
        connection.close()


async def row(stack, call, within_s=40.0) -> dict:
    """The one row of an answer."""
    await call.head()
    rid = call.headers["x-request-id"]

    async def there() -> bool:
        return rid in rows(stack)

    await eventually(there, f"a row of {rid}", within_s)
    [only] = rows(stack)[rid]
    return only


async def finished(call) -> tuple[int, int]:
    """Read to the end; the tokens that its usage chunk reports, and pieces of text."""
    usage, pieces = 0, 0
    while (event := await call.next()) is not None:
        pieces += any(choice.get("delta", {}).get("content") for choice in event.get("choices", []))
        if event.get("usage"):
            usage = event["usage"]["completion_tokens"]
    return usage, pieces


async def drained(call) -> int:
    """Read until the connection is cut; pieces of text (one token each)."""
    return (await finished(call))[1]


async def test_good_answers_cost_what_http_reported(null):
    async with watching(null) as watch:
        for _ in range(EACH):
            streamed = await Call.post(
                null, chat("x", model="null", max_tokens=20, stream_options={"include_usage": True})
            )
            usage, _ = await finished(streamed)
            whole = await Call.post(null, chat("x", model="null", stream=False, n=2, max_tokens=7))
            body = await whole.body()
            one, two = await row(null, streamed), await row(null, whole)
            assert (one["charged"], one["generated"], one["outcome"]) == (usage, usage, "length")
            assert (two["charged"], two["prompt"], two["outcome"]) == (
                body["usage"]["completion_tokens"],
                body["usage"]["prompt_tokens"],
                "length",
            )
        await watch.reach("idle", idle)


async def test_two_requests_that_a_client_names_alike_are_two(null):
    async with watching(null) as watch:
        for _ in range(2):
            answer = await watch.http.post(
                f"{null.url}/v1/chat/completions",
                json=chat("x", model="null", stream=False, max_tokens=3),
                headers={**null.headers, "x-request-id": "always-the-same"},
            )
            assert answer.status_code == 200

        async def both() -> bool:
            return len(rows(null).get("always-the-same", [])) == 2

        await eventually(both, "two rows", 20)


async def test_who_leaves_pays_for_what_was_made_until_the_cancel(null):
    async with watching(null) as watch:
        calls = [await Call.post(null, chat("x", model="null")) for _ in range(EACH)]
        await asyncio.gather(*(call.take(30 + 10 * number) for number, call in enumerate(calls)))
        received = [call.events - 1 for call in calls]
        for call in calls:
            call.drop()
        for call, tokens in zip(calls, received, strict=True):
            found = await row(null, call)
            assert found["outcome"] == "client_left"
            assert found["charged"] == found["generated"]
            assert tokens <= found["charged"] <= tokens + BOUND
        await watch.reach("idle", idle)


async def test_a_refused_request_has_no_row(null):
    async with watching(null):
        call = await Call.post(null, chat("x", model="nothing-like-it"))
        assert await call.head() == 404
        assert call.headers["x-request-id"] not in rows(null)


async def test_a_killed_worker_costs_what_the_clients_got(null):
    async with watching(null) as watch:
        calls = [await Call.post(null, chat("x", model="null")) for _ in range(2 * EACH)]
        whole = await Call.post(null, chat("x", model="null", stream=False))
        await asyncio.gather(*(call.take(40) for call in calls))
        for pid in null.pids("workers.cli"):
            os.kill(pid, signal.SIGKILL)
        received = await asyncio.gather(*(drained(call) for call in calls))
        assert all(call.error for call in calls)
        for call, tokens in zip(calls, received, strict=True):
            found = await row(null, call)
            assert found["outcome"] == "worker_failed"
            assert abs(found["charged"] - (tokens + 39)) <= 2
        await whole.body()
        assert (await row(null, whole))["charged"] == 0, "of half a JSON answer nothing was delivered"
        await watch.ready()
        await watch.reach("idle", idle)


async def test_a_killed_gateway_costs_within_one_check_of_what_the_clients_got(null):
    """Its successor of the same name finds the requests open, and closes each once."""
    async with watching(null) as watch:
        await watch.ready()
        [pid] = null.pids("gateway.cli gateway")
        calls = [await Call.post(null, chat("x", model="null")) for _ in range(2 * EACH)]
        await asyncio.gather(*(call.take(90 + 7 * number) for number, call in enumerate(calls)))
        before = [call.events - 1 for call in calls]
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        rest = await asyncio.gather(*(drained(call) for call in calls))
        received = [one + more for one, more in zip(before, rest, strict=True)]
        await watch.ready()
        found = [await row(null, call) for call in calls]
        took = time.monotonic() - killed
        print(
            "\ngateway killed: received, charged:",
            [(n, one["charged"]) for n, one in zip(received, found, strict=True)],
        )
        print(f"all closed after {took:.1f} s")
        for tokens, one in zip(received, found, strict=True):
            assert one["outcome"] == "gateway_lost"
            assert abs(one["charged"] - tokens) <= BOUND
            assert one["generated"] >= tokens, "the worker told what it had made"
        assert took < 40
        await watch.reach("idle", idle)


async def test_nats_away_for_a_moment_loses_no_record(null):
    async with watching(null) as watch:
        [pid] = null.pids("nats-server")
        calls = [await Call.post(null, chat("x", model="null", max_tokens=150)) for _ in range(EACH)]
        await asyncio.gather(*(call.take(20) for call in calls))
        os.kill(pid, signal.SIGKILL)
        for call in calls:
            await drained(call)
        for call in calls:
            found = await row(null, call)
            if call.done:
                assert found["charged"] == 150
            else:
                assert abs(found["charged"] - (call.events - 2)) <= 2
        await watch.reach("all is confirmed", lambda seen: not seen["evenflow_usage_unconfirmed"])
        assert (await watch.metrics())["evenflow_usage_dropped_total"] == 0


async def test_all_that_was_served_stands_there_once(null):
    """After everything above: no request twice, nothing left open, and the command line shows it."""
    found = rows(null)
    twice = {rid: len(these) for rid, these in found.items() if len(these) > 1}
    assert twice in ({}, {"always-the-same": 2})
    async with watching(null) as watch:
        await watch.reach(
            "nothing is open", lambda seen: not seen["evenflow_ledger_open"] and not seen["evenflow_usage_open"]
        )
    shown = json.loads(await asyncio.to_thread(command, null, "usage", "list", "--json", "--most", "100000"))
    assert {one["id"] for one in shown} == {one["id"] for these in found.values() for one in these}
