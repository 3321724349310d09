"""Live figures: what is sent, how often, to how many, and when a stream ends."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from gateway.core.accounts import Limits
from gateway.dashboard import live as lives
from gateway.dashboard import tenants
from gateway.dashboard.live import Live
from gateway.dashboard.tenants import TenantsRoom
from tests.dashboard.conftest import BY, Request


def decoded(event):
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return msgspec.json.decode(event[6:])


def asked(**query):
    return SimpleNamespace(query_params=query)


@pytest.fixture
def live(desk):
    return Live(desk.house, desk.store, TenantsRoom(desk.house, desk.store))


def stream(live):
    return live._updates(live._shared_overview, lambda: live._house.pulse.pulse.tracks)


async def test_one_event_a_second_and_in_it_only_what_changed(desk, live):
    events = stream(live)
    assert (await anext(events)).startswith(b"retry: ")
    first = decoded(await anext(events))
    assert {"tokens-value", "troubles", "shares"} <= set(first["pieces"])
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert not waiting.done(), "nothing comes before the next second"
    request = Request(30)
    desk.house.pulse.begun(request, "t1", "acme", desk.clock.seconds)
    desk.second()
    second = decoded(await waiting)
    assert second["values"]["tokens"] == 30
    assert second["pieces"]["in_flight-value"] == "1"
    assert "troubles" not in second["pieces"]
    await events.aclose()
    assert live.watchers == 0


async def test_a_stream_ends_after_a_while_so_that_a_session_is_asked_for_again(desk, live, monkeypatch):
    monkeypatch.setattr(lives, "LIFE_S", 0.0)
    assert len([event async for event in stream(live)]) == 1


async def test_streams_end_when_the_process_is_about_to(desk, live):
    events = stream(live)
    await anext(events)
    await anext(events)
    desk.house.draining.set()
    with desk.house.meters.flight():
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        desk.second()
        await waiting  # somebody's answer still runs: it is watched to the end
    waiting = asyncio.ensure_future(anext(events, None))
    await asyncio.sleep(0)
    desk.second()
    assert await waiting is None


async def test_watchers_are_bounded(desk, ada, monkeypatch):
    monkeypatch.setattr(lives, "WATCHERS", 0)
    answer = await ada.client.get("/live?room=overview")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_a_stream_over_http(desk, ada, monkeypatch):
    monkeypatch.setattr(lives, "LIFE_S", 0.2)
    monkeypatch.setattr(lives, "_PATIENCE_S", 0.05)
    answer = await ada.client.get("/live?room=overview")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.content.startswith(b"retry: ")
    assert answer.content.count(b"data: ") >= 1


async def test_the_series_of_the_gateway_and_of_a_tenant(desk, ada):
    row = await desk.store.tenants.create("acme", by=BY)
    request = Request(5)
    desk.house.pulse.begun(request, row.id, "acme", desk.clock.seconds)
    desk.second()
    for query in ("room=overview", "room=tenant&tenant=acme"):
        told = (await ada.client.get(f"/live/history?{query}")).json()
        assert told["until"] == desk.clock.now // 1000
        assert len(told["series"]["tokens"]) == 900
        assert told["series"]["tokens"][-2:] == [None, 5]
    assert (await ada.client.get("/live/history?room=cellar")).status_code == 400
    assert (await ada.client.get("/live/history?room=tenant&tenant=nobody")).status_code == 404


async def test_of_the_tenants_only_rows_that_differ_are_made_anew(desk, ada, monkeypatch):
    made = []
    original = tenants.fragment
    monkeypatch.setattr(tenants, "fragment", lambda *args, **more: made.append(args) or original(*args, **more))
    rows = [await desk.store.tenants.create(name, by=BY) for name in ("acme", "globex", "initech")]
    room = TenantsRoom(desk.house, desk.store)
    pieces = await room.list_pieces(asked())
    first = pieces()["tenant-rows"]
    assert (len(made), first.count("<tr>")) == (3, 3)
    assert pieces()["tenant-rows"] == first
    assert len(made) == 3, "nothing has changed"
    desk.house.quotas.accounts(rows[1].id, "", "")[0].streams = 2
    assert pieces()["tenant-rows"] != first
    assert len(made) == 4
    nobody = (await room.list_pieces(asked(search="nobody")))()
    assert "nobody" in nobody["tenant-rows"]


async def test_what_changes_on_a_tenants_page(desk):
    row = await desk.store.tenants.create("acme", limits=Limits(streams=2), by=BY)
    await desk.refresh()
    pieces, tenant = await TenantsRoom(desk.house, desk.store).tenant_pieces("acme")
    assert tenant == row.id
    assert "0 <span" in pieces()["accounts"]
    desk.house.quotas.accounts(row.id, "", "")[0].streams = 2
    assert "nothing left" in pieces()["accounts"]


async def test_a_session_that_is_over_watches_nothing(desk, ada):
    assert (await ada.client.get("/live/history?room=overview")).status_code == 200
    await desk.store.admins.set_disabled("ada", disabled=True, by=BY)
    for path in ("/live?room=overview", "/live/history?room=overview"):
        assert (await ada.client.get(path)).status_code == 401
