"""Live figures: what is sent, how often, to how many, and when a stream ends."""

import asyncio

import msgspec
import pytest

from gateway.dashboard import live as lives
from gateway.dashboard.live import Live
from gateway.dashboard.tenants import TenantsRoom
from tests.dashboard.conftest import BY, Request


def decoded(event):
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return msgspec.json.decode(event[6:])


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
