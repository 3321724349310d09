"""Every page, as somebody without scripts reads it."""

import re
from html.parser import HTMLParser

import pytest

from gateway.core.accounts import Limits
from gateway.dashboard.assets import ASSETS
from tests.dashboard.conftest import BY, Request

ROOMS = ("/", "/tenants", "/keys", "/usage", "/usage/requests", "/audit")


@pytest.fixture
async def acme(desk):
    await desk.store.tenants.create("acme", zone="Europe/Berlin", limits=Limits(tokens=1000, streams=4), by=BY)
    row, _ = await desk.store.keys.create("acme", "laptop", by=BY)
    await desk.refresh()
    return row


@pytest.mark.parametrize("path", ROOMS)
async def test_an_empty_service_says_what_to_do_next(ada, path):
    page = await ada.see(path)
    assert "<h1>" in page.html
    assert 'class="empty"' in page.html or path == "/audit"


@pytest.mark.parametrize("path", [*ROOMS, "/tenants/acme", "/tenants/acme/quota", "/login"])
async def test_nothing_is_inline_and_nothing_comes_from_elsewhere(ada, acme, path):
    page = await ada.see(path)
    policy = page.answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert page.answer.headers["referrer-policy"] == "same-origin"
    assert page.answer.headers["cache-control"] == "no-store"

    class Looks(HTMLParser):
        def handle_starttag(self, tag, attrs):
            told = dict(attrs)
            assert not [name for name in told if name.startswith("on") or name == "style"], self.get_starttag_text()
            assert tag != "style"
            if tag == "script":
                assert told["src"].startswith("/assets/")
            for name in ("src", "href", "action"):
                assert told.get(name, "/").startswith(("/", "#")), told

    Looks().feed(page.html)


@pytest.mark.parametrize("path", [*ROOMS, "/tenants/acme", "/tenants/acme/quota"])
async def test_every_field_and_every_table_says_what_it_is(ada, acme, path):
    page = await ada.see(path)
    for field in re.finditer(r"<(?:input|select)(?![^>]*type=\"hidden\")[^>]*>", page.html):
        before = page.html[: field.start()]
        assert before.rfind("<label") > before.rfind("</label>"), field[0]
    assert page.html.count("<h1") == 1
    assert "<title>" in page.html
    for head in re.findall(r"<th[^>]*>", page.html):
        assert "scope=" in head or head.startswith("<thead")


async def test_assets_are_kept_for_ever_under_their_hash(desk):
    async with desk.client() as client:
        for asset in ASSETS.values():
            answer = await client.get(asset.address)
            assert (answer.status_code, answer.content) == (200, asset.content)
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["content-type"].partition(";")[0] == asset.media_type
        name, asset = next(iter(ASSETS.items()))
        assert (await client.get(asset.address.replace(".", ".0", 1))).status_code == 404
        assert (await client.get(f"/assets/{name}")).status_code == 404
        assert (await client.get("/assets/..%2fpages.py")).status_code == 404


async def test_the_overview_shows_what_goes_on(desk, ada, acme):
    request = Request()
    desk.house.pulse.begun(request, acme.tenant_id, "acme", desk.clock.seconds)
    desk.second()
    for _ in range(5):
        request.attempts[0].received += 12
        desk.second()
    page = await ada.see("/")
    assert "12.0 tokens/s" in page.text
    assert "Requests in flight 1 requests" in page.text
    assert "100.0 %" in page.text
    assert "Nothing is wrong." in page.text
    assert "<polyline" in page.html
    assert "lowest 0.0, highest 12.0" in page.html, "the same in words"


async def test_what_is_wrong_comes_worst_first_and_says_what_to_do(desk, ada):
    desk.house.fleet.workers["w1"].gone = True
    desk.house.concerns.append(lambda: "keys are 9 s old")
    desk.house.obstacles.append(lambda: "two stores are in use")
    desk.house.streams.connected = False
    page = await ada.see("/")
    places = [page.text.index(what) for what in (
        "The connection to NATS is down", "No worker is ready", "Two stores are in use", "Worker w1 has gone silent",
        "Keys are 9 s old",
    )]  # fmt: skip
    assert max(places[:3]) < min(places[3:])
    assert "See whether NATS runs" in page.text


async def test_the_table_of_tenants_shows_use_against_limits(desk, ada, acme):
    account = desk.house.quotas.accounts(acme.tenant_id, "", "")[0]
    account.streams = 3
    account.tokens.take(desk.house.quotas.now_ms, 900)
    quotas = desk.house.quotas
    quotas.used_before((acme.tenant_id, acme.id, "smol"), quotas.periods(acme.tenant_id, "Europe/Berlin"), 77)
    page = await ada.see("/tenants")
    assert "3 of 4" in page.text
    assert "900 of 1,000" in page.text
    assert "nearly all" in page.text
    assert "77 no limit" in page.text
    assert 'width="90.0"' in page.html


async def test_tenants_are_searched_and_paged_and_none_is_left_out(desk, ada):
    for number in range(205):
        await desk.store.tenants.create(f"t{number:03}", by=BY)
    seen, path = [], "/tenants"
    while path:
        page = await ada.see(path)
        seen += re.findall(r'<th scope="row"><a href="/tenants/(t\d+)"', page.html)
        found = re.search(r'href="([^"]+)">Next page', page.html)
        path = found[1].replace("&amp;", "&") if found else None
    assert seen == [f"t{number:03}" for number in range(205)]
    assert "This is the last page" in page.text
    page = await ada.see("/tenants?search=20")
    assert re.findall(r'href="/tenants/(t\d+)"', page.html) == ["t020", "t120", "t200", "t201", "t202", "t203", "t204"]
    assert "All tenants" in (await ada.see("/tenants?search=nobody")).text


async def test_a_tenants_page_has_everything_of_it(desk, ada, acme):
    page = await ada.see("/tenants/acme")
    for what in ("Europe/Berlin", "laptop", "0 of 4", "0 of 1,000", "No request is on record", "Nothing was used"):
        assert what in page.text
    assert (await ada.see("/tenants/nobody", 404)).text.count("There is no tenant 'nobody'") == 0  # it is escaped
    assert "nobody" in (await ada.see("/tenants/nobody", 404)).text


async def test_usage_by_filters_of_the_address_and_as_csv(desk, ada, acme):
    page = await ada.see("/usage?tenant=acme&by=day&by=model&from=2026-01-01&to=2026-12-31")
    assert "Nothing was used that fits" in page.text
    csv = re.search(r'href="([^"]+)"[^>]*>CSV', page.html)[1].replace("&amp;", "&")
    answer = await ada.client.get(csv)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/csv")
    assert answer.text.startswith("day,model,requests")
    for bad in ("by=colour", "from=yesterday", "after=!!", "tenant=" + "x" * 64):
        page = await ada.see(f"/usage?{bad}", 400)
        assert "Nothing was changed" in page.text


async def test_the_audit_log_by_filters_and_as_csv(desk, ada, acme):
    page = await ada.see("/audit?kind=tenant")
    assert "tenant.create" in page.text
    assert "key.create" not in page.text
    answer = await ada.client.get("/audit.csv?kind=key")
    rows = answer.text.splitlines()
    assert answer.headers["content-type"].startswith("text/csv")
    assert (len(rows), "key.create" in rows[1]) == (2, True)
    assert "No change fits" in (await ada.see("/audit?actor=nobody")).text
    await ada.see("/audit?before=x", 400)
    await ada.see("/audit?from=x", 400)


async def test_the_audit_log_is_paged_and_nothing_is_left_out(desk, ada):
    for number in range(150):
        await desk.store.tenants.create(f"t{number}", by=BY)
    last = (await desk.store.audit.head()).sequence
    first = await ada.see("/audit")
    path = re.search(r'href="([^"]+)">Next page', first.html)[1].replace("&amp;", "&")
    second = await ada.see(path)
    seen = [int(number) for page in (first, second) for number in re.findall(r'id="entry-(\d+)"', page.html)]
    assert seen == list(range(last, 0, -1))
    assert (await ada.client.get("/audit.csv")).text.count("\r\n") == last + 1


async def test_names_from_elsewhere_cannot_become_markup(desk, ada):
    page = await ada.see("/tenants?search=<script>alert(1)</script>")
    assert "<script>alert" not in page.html
    page = await ada.see("/keys?tenant=%22onfocus=x", 404)
    assert '"onfocus' not in page.html
