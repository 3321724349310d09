"""Every change: asked about with its effect, made once, by whom the audit log says, and never over somebody else's."""

import re

import pytest

from gateway.core.accounts import Limits
from gateway.core.keys import well_formed
from gateway.dashboard.standing import effects
from gateway.services.quotas import Standing
from shared.errors import StoreError
from tests.dashboard.conftest import BY, ORIGIN, PASSWORD, Person


@pytest.fixture
async def acme(desk):
    row = await desk.store.tenants.create("acme", limits=Limits(tokens=1000, streams=4), by=BY)
    await desk.refresh()
    return row


@pytest.fixture
async def laptop(desk, acme):
    row, _ = await desk.store.keys.create("acme", "laptop", by=BY)
    return row


async def last(desk):
    from gateway.store.audit import Filter

    return (await desk.store.audit.page(Filter(), before=None, most=1))[0]


async def answer(ada, page, status=303):
    """Agree to what a page asks."""
    action = re.search(r'class="ask" method="post" action="([^"]+)"', page.html)[1].replace("&amp;", "&")
    return await ada.send(action, status, **page.form(action.replace("&amp;", "&")))


# ------------------------------------------------------------------------------------------------------------ the door


@pytest.mark.parametrize("path", ["/", "/tenants?search=a", "/keys/x", "/audit.csv"])
async def test_nobody_sees_anything_without_a_login_and_comes_back_after_it(desk, acme, path):
    async with desk.client() as client:
        found = await client.get(path)
        assert (found.status_code, "acme" in found.text) == (303, False)
        target = found.headers["location"]
        page = await Person(client).see(target)
        fields = page.form("/login") | {"name": "ada", "password": PASSWORD}
        assert (await client.post("/login", data=fields)).headers["location"] == path


async def test_every_page_but_the_login_and_the_assets_needs_one(desk):
    opened = {
        handler.handler_name for route in desk.app.routes for handler in route.route_handlers if handler.opt.get("open")
    }
    assert opened == {"asset", "login_page", "login"}
    async with desk.client() as client:
        for path in ("/live?room=overview", "/live/history?room=overview"):
            assert (await client.get(path)).status_code == 401
        found = await client.get("/tenants", headers={"hx-request": "true"})
        assert (found.status_code, found.headers["hx-redirect"]) == (200, "/login?next=%2Ftenants")


async def test_a_wrong_password_is_told_and_slowed_down(desk):
    async with desk.client() as client:
        for _ in range(5):
            page = await client.post("/login", data={"name": "ada", "password": "wrong"})
            assert (page.status_code, "The name or the password is wrong." in page.text) == (401, True)
            assert "wrong" not in page.text.replace("is wrong.", "")
        page = await client.post("/login", data={"name": "ada", "password": PASSWORD})
        assert (page.status_code, "Too many tries" in page.text) == (429, True)


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:x", ""])
async def test_the_login_leads_nowhere_else(desk, target):
    async with desk.client() as client:
        found = await client.post("/login", data={"name": "ada", "password": PASSWORD, "next": target})
        assert found.headers["location"] == "/"


async def test_a_forged_change_is_refused(desk, ada, acme):
    good = {"name": "bigco", "zone": "UTC", "csrf": (await ada.see("/tenants")).csrf}
    for fields, headers in (
        (good | {"csrf": "0" * 43}, {}),
        ({"name": "bigco"}, {}),
        (good, {"origin": "http://elsewhere"}),
        (good, {"origin": "null"}),
        (good, {"sec-fetch-site": "cross-site"}),
    ):
        found = await ada.client.post("/tenants", data=fields, headers=headers)
        assert found.status_code == 403, fields
    assert (await ada.client.post("/tenants", json=good)).status_code == 415
    assert (await ada.client.post("/tenants", data=good | {"zone": "x" * 70_000})).status_code == 413
    assert [row.name for row in await desk.store.tenants.all()] == ["acme"]
    own = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
    assert (await ada.client.post("/tenants", data=good, headers=own)).status_code == 303


async def test_addresses_without_a_page_are_told_to_people_in_words_and_to_programs_as_problems(desk, ada):
    for method, path, status in (("GET", "/nowhere", 404), ("GET", "/tenants/acme/state", 405)):
        answer = await ada.client.request(method, path, headers={"accept": "text/html,*/*"})
        assert (answer.status_code, "<h1>" in answer.text) == (status, True)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        answer = await ada.client.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    answer = await ada.client.get("/admin/v1/nowhere", headers={"accept": "text/html"})
    assert answer.headers["content-type"] == "application/problem+json"


async def test_logging_out_ends_it(desk, ada):
    page = await ada.see("/")
    await ada.send("/logout", 303, csrf=page.csrf)
    await ada.see("/", 303)


async def test_a_store_that_is_down_is_said_in_words(desk, ada, monkeypatch):
    async def down(*_, **__):
        raise StoreError("secret://where.it.is")

    monkeypatch.setattr(desk.store.pages, "tenants", down)
    page = await ada.see("/tenants", 503)
    assert "See whether the database runs" in page.text
    assert "secret" not in page.html


# ------------------------------------------------------------------------------------------------------------- tenants


async def test_a_tenant_is_made_and_bad_names_are_told_beside_the_form(desk, ada):
    csrf = (await ada.see("/tenants")).csrf
    made = await ada.send("/tenants", 303, csrf=csrf, name="acme", zone="Europe/Berlin")
    page = await ada.follow(made)
    assert "Done: tenant.create, acme" in page.text
    entry = await last(desk)
    assert (entry.action, entry.actor_kind, entry.actor_name, entry.source) == (
        "tenant.create", "admin", "ada", "10.0.0.1",
    )  # fmt: skip
    for name, status in (("Acme!", 400), ("acme", 409)):
        page = await ada.send("/tenants", status, csrf=csrf, name=name, zone="UTC")
        assert 'role="alert"' in page.html
        assert f'value="{name}"' in page.html, "what was typed is still there"


async def test_shutting_a_tenant_out_says_what_goes_on(desk, ada, acme):
    desk.house.quotas.accounts(acme.id, "", "")[0].streams = 3
    page = await ada.see("/tenants/acme")
    page = await ada.send("/tenants/acme/state", 200, **page.form("/tenants/acme/state"))
    assert "3 running answers go on to the end" in page.text
    assert (await desk.store.tenants.one("acme")).disabled_at is None, "it was only asked"
    page = await ada.follow(await answer(ada, page))
    assert "shut out" in page.text
    page = await ada.send("/tenants/acme/state", 200, **page.form("/tenants/acme/state"))
    await answer(ada, page)
    assert (await desk.store.tenants.one("acme")).disabled_at is None


async def test_another_calendar(desk, ada, acme):
    page = await ada.see("/tenants/acme")
    fields = page.form("/tenants/acme/calendar")
    await ada.follow(
        await answer(ada, await ada.send("/tenants/acme/calendar", 200, **fields | {"zone": "Asia/Tokyo"}))
    )
    assert (await desk.store.tenants.one("acme")).zone == "Asia/Tokyo"
    page = await ada.send("/tenants/acme/calendar", 200, **fields | {"zone": "Mars/Olympus"})
    assert "no time zone" in (await answer(ada, page, 400)).text


# ---------------------------------------------------------------------------------------------------------------- keys


async def test_a_keys_secret_is_shown_once(desk, ada, acme):
    page = await ada.see("/tenants/acme")
    fields = page.form("/tenants/acme/keys") | {"name": "laptop", "days": "30", "models": "smol, big-*"}
    page = await ada.send("/tenants/acme/keys", 200, **fields)
    secret = re.search(r'id="secret"[^>]*>([^<]+)<', page.html)[1]
    assert well_formed(secret)
    assert page.answer.headers["cache-control"] == "no-store"
    assert page.answer.headers["hx-push-url"] == "false"
    row = await desk.store.keys.one("laptop", tenant="acme")
    assert (row.models, row.expires_at) == (("smol", "big-*"), desk.clock.now + 30 * 86_400_000)
    for path in ("/tenants/acme", f"/keys/{row.id}", "/keys", "/audit"):
        assert secret not in (await ada.see(path)).html
    assert "already" in (await ada.send("/tenants/acme/keys", 409, **fields)).text
    bad = await ada.send("/tenants/acme/keys", 400, **fields | {"name": "other", "networks": "10.0.0.0/99"})
    assert "10.0.0.0/99" in bad.html


async def test_rotating_shows_both_keys_and_when_the_old_one_ends(desk, ada, laptop):
    path = f"/keys/{laptop.id}/rotate"
    page = await ada.see(f"/keys/{laptop.id}")
    page = await ada.send(path, 200, **page.form(path) | {"hours": "6"})
    assert "goes on for 6 h" in page.text
    page = await answer(ada, page, 200)
    assert "Shown only here" in page.text
    assert laptop.display in page.text
    old = await desk.store.keys.one(laptop.id)
    assert old.expires_at == desk.clock.now + 6 * 3_600_000
    assert "in 6 h" in page.text
    assert "being replaced" in (await ada.see(f"/keys/{laptop.id}")).text


async def test_revoking_asks_for_the_keys_name(desk, ada, acme, laptop):
    account = desk.house.quotas.accounts(acme.id, laptop.id, "")[1]
    account.streams = 1
    path = f"/keys/{laptop.id}/revoke"
    page = await ada.send(path, 200, **(await ada.see(f"/keys/{laptop.id}")).form(path))
    assert "1 running answer goes on" in page.text
    asked = page.form(path)
    for typed in ("", "Laptop", "desktop"):
        page = await ada.send(path, 400, **asked | {"typed": typed})
        assert "Nothing was changed" in page.text
    assert (await desk.store.keys.one(laptop.id)).revoked_at is None
    page = await ada.follow(await ada.send(path, 303, **asked | {"typed": "laptop"}))
    assert "revoked" in page.text
    assert (await last(desk)).action == "key.revoke"


async def test_a_keys_rules_and_end(desk, ada, laptop):
    path = f"/keys/{laptop.id}/rules"
    fields = (await ada.see(f"/keys/{laptop.id}")).form(path)
    changed = fields | {"expires": "2030-01-31T12:00", "scope": "inference", "networks": "10.0.0.0/8"}
    page = await ada.send(path, 200, **changed)
    assert "10.0.0.0/8" in page.text
    await answer(ada, page)
    row = await desk.store.keys.one(laptop.id)
    assert (row.scopes, row.networks, row.expires_at) == (("inference",), ("10.0.0.0/8",), 1_896_091_200_000)
    assert "is no date" in (await ada.send(path, 400, **changed | {"expires": "soon"})).text
    page = await ada.send(path, 200, **changed | {"version": "1", "networks": ""})
    assert "Somebody else changed it" in (await answer(ada, page, 412)).text


# -------------------------------------------------------------------------------------------------------------- quotas


async def test_a_quota_is_changed_after_its_effect_was_told(desk, ada, acme):
    desk.house.quotas.accounts(acme.id, "", "")[0].streams = 3
    page = await ada.see("/tenants/acme/quota?key=&model=")
    fields = page.form("/tenants/acme/quota")
    assert (fields["tokens"], fields["streams"], fields["version"]) == ("1000", "4", "1")
    page = await ada.send("/tenants/acme/quota", 200, **fields | {"tokens": "20,000", "streams": "2"})
    assert "3 requests run now: all of them go on" in page.text
    assert "Tokens a minute 1,000 20,000" in page.text
    assert (await desk.store.quotas.one("acme")).limits.tokens == 1000, "it was only asked"
    page = await ada.follow(await answer(ada, page))
    assert "Done: quota.set, acme" in page.text
    row = await desk.store.quotas.one("acme")
    assert (row.limits, row.version) == (Limits(tokens=20_000, streams=2), 2)


async def test_no_update_is_lost(desk, ada, acme):
    fields = (await ada.see("/tenants/acme/quota")).form("/tenants/acme/quota")
    page = await ada.send("/tenants/acme/quota", 200, **fields | {"tokens": "5"})
    await desk.store.quotas.set("acme", Limits(tokens=7), by=BY)
    page = await answer(ada, page, 412)
    assert "Somebody else changed it" in page.text
    assert (await desk.store.quotas.one("acme")).limits == Limits(tokens=7)
    # nor when it was changed before the question was asked
    page = await ada.send("/tenants/acme/quota", 200, **fields | {"tokens": "5"})
    await answer(ada, page, 412)
    assert (await desk.store.quotas.one("acme")).limits == Limits(tokens=7)


async def test_limits_of_a_key_and_of_a_model_and_their_removal(desk, ada, acme, laptop):
    path = f"/tenants/acme/quota?key={laptop.id}&model=smol"
    fields = (await ada.see(path)).form(path.replace("&", "&amp;").replace("&amp;", "&"))
    assert fields["version"] == "0"
    await answer(ada, await ada.send(path, 200, **fields | {"daily": "100", "strict": "yes"}))
    row = await desk.store.quotas.one("acme", key=laptop.id, model="smol")
    assert row.limits == Limits(daily=100, strict=True)
    await desk.refresh()
    assert "key laptop, model smol" in (await ada.see("/tenants/acme")).text
    page = await ada.send(path, 200, csrf=fields["csrf"], version="1", clear="yes")
    assert "No limit any more: tokens a day." in page.text
    await answer(ada, page)
    assert [one.key_id for one in await desk.store.quotas.of_tenant("acme")] == [""]


@pytest.mark.parametrize("bad", ["-1", "1e9", "many", "9" * 17, str(2**53 + 1), "1.5", "²"])
async def test_a_limit_that_is_no_number_is_told_beside_the_form(desk, ada, acme, bad):
    fields = (await ada.see("/tenants/acme/quota")).form("/tenants/acme/quota")
    page = await ada.send("/tenants/acme/quota", 400, **fields | {"tokens": bad, "streams": "9"})
    assert "must be a whole number" in page.text
    assert 'value="9"' in page.html
    assert (await desk.store.quotas.one("acme")).limits.tokens == 1000


def test_effects_say_who_is_squeezed_and_what_ends():
    now = Standing(
        key_id="", model="", limits=Limits(), requests=None, tokens=None, streams=5, long_prompts=0,
        day_used=900, day_held=0, day_ends=0, month_used=0, month_held=0, month_ends=0,
    )  # fmt: skip
    told = effects("acme", Limits(tokens=10), Limits(streams=2, daily=800, strict=True), now)
    text = " ".join(told)
    for what in (
        "5 requests run now",
        "has used 900 tokens today",
        "never goes into debt",
        "No limit any more: tokens a minute",
    ):
        assert what in text
    assert len(effects("acme", Limits(), Limits(streams=9), now)) == 1
