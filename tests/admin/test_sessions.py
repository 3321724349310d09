"""Who gets in, how, for how long, and what stops them."""

import pytest
from argon2 import PasswordHasher

from gateway.admin.sessions import COOKIE, SECURE_COOKIE
from gateway.store.passwords import HASHER, Passwords
from shared.errors import InvalidRecordError, UnavailableError
from tests.admin.conftest import BY, ORIGIN, PASSWORD, door

SESSION = "/admin/v1/session"
HOUR_MS = 3_600_000


async def test_a_login_and_its_end(desk):
    async with await desk.login() as ada:
        answer = await ada.get(SESSION)
        assert (answer.status_code, answer.json()["name"], answer.json()["kind"]) == (200, "ada", "admin")
        assert answer.json()["csrf"] == ada.headers["x-csrf-token"]
        gone = await ada.delete(SESSION)
        assert gone.status_code == 204
        assert "Max-Age=0" in gone.headers["set-cookie"]
        assert (await ada.get(SESSION)).status_code == 401


@pytest.mark.parametrize("name", ["a\0b", "", "ADA", "x" * 63, "\u2028"])
async def test_names_that_nobody_can_have_are_wrong_like_any_other(both, name):
    async with both.client() as client:
        answer = await client.post(SESSION, json={"name": name, "password": PASSWORD})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_who_is_shut_out_while_the_password_is_checked_does_not_get_in(desk, monkeypatch):
    stale = await desk.store.admins.one("ada")
    await desk.store.admins.set_disabled("ada", disabled=True, by=BY)
    await desk.store.admins.set_disabled("ada", disabled=False, by=BY)

    async def verified(_name, _password):
        return stale

    monkeypatch.setattr(desk.store.admins, "verify", verified)
    async with desk.client() as client:
        assert (await client.post(SESSION, json={"name": "ada", "password": PASSWORD})).status_code == 401


async def test_the_cookie_is_out_of_reach_and_its_secret_is_not_kept(desk, tmp_path):
    async with desk.client() as client:
        answer = await client.post(SESSION, json={"name": "ada", "password": PASSWORD})
        cookie = answer.headers["set-cookie"]
        secret = answer.cookies[COOKIE]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert len(secret) >= 43
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert not any(secret.encode() in data or PASSWORD.encode() in data for data in files)


async def test_behind_tls_the_cookie_never_crosses_in_plain_text(tmp_path, clock, cheap):
    async with door(tmp_path, clock, offloaded=True) as desk:
        await desk.store.admins.create("ada", PASSWORD, by=BY)
        async with desk.client() as client:
            answer = await client.post(SESSION, json={"name": "ada", "password": PASSWORD})
    assert answer.headers["set-cookie"].startswith(f"{SECURE_COOKIE}=")
    assert "Secure" in answer.headers["set-cookie"]


async def test_a_session_ends_when_idle_and_in_any_case(desk):
    async with await desk.login() as ada:
        for _ in range(4):  # used every 55 minutes, it lives on
            desk.clock.now += 55 * 60_000
            assert (await ada.get(SESSION)).status_code == 200
        desk.clock.now += 61 * 60_000
        assert (await ada.get(SESSION)).status_code == 401
    async with await desk.login() as ada:
        for _ in range(13):
            desk.clock.now += 55 * 60_000
            assert (await ada.get(SESSION)).status_code == 200
        desk.clock.now += 6 * 60_000  # 12 h and 1 min
        assert (await ada.get(SESSION)).status_code == 401


@pytest.mark.parametrize("what", ["password", "disable"])
async def test_a_new_password_or_a_shut_door_ends_every_session(desk, what):
    async with await desk.login() as ada:
        if what == "password":
            await desk.store.admins.set_password("ada", "another horse battery", by=BY)
        else:
            await desk.store.admins.set_disabled("ada", disabled=True, by=BY)
        assert (await ada.get(SESSION)).status_code == 401


async def test_unknown_wrong_and_shut_out_are_told_alike_after_the_same_work(desk, monkeypatch):
    checked = []
    original = PasswordHasher.verify
    monkeypatch.setattr(PasswordHasher, "verify", lambda *a: checked.append(a[1]) or original(*a))
    await desk.store.admins.create("bob", PASSWORD, by=BY)
    await desk.store.admins.set_disabled("bob", disabled=True, by=BY)
    answers = []
    for name, password in (("nobody", PASSWORD), ("ada", "wrong"), ("bob", PASSWORD)):
        async with desk.client() as client:
            answer = await client.post(SESSION, json={"name": name, "password": password})
        answers.append((answer.status_code, {**answer.json(), "request_id": ""}))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == 401
    parameters = {hashed.rpartition("$")[0].rpartition("$")[0] for hashed in checked}
    assert (len(checked), len(parameters)) == (3, 1), "each was compared with a hash of the same cost"


def test_nobodys_hash_costs_what_a_real_one_costs():
    passwords = Passwords()
    assert (
        passwords._nobody.rpartition("$")[0].rpartition("$")[0]
        == HASHER.hash("x" * 12).rpartition("$")[0].rpartition("$")[0]
    )
    assert not passwords.outdated(passwords._nobody)
    passwords.close()


@pytest.mark.parametrize(("source", "name"), [("10.0.0.1", "name{}"), ("10.0.0.{}", "ada")])
async def test_guesses_are_slowed_by_source_and_by_name(desk, source, name):
    for number in range(5):
        async with desk.client(source.format(number)) as client:
            answer = await client.post(SESSION, json={"name": name.format(number), "password": "wrong"})
        assert answer.status_code == 401
    async with desk.client(source.format(9)) as client:
        answer = await client.post(SESSION, json={"name": name.format(9), "password": PASSWORD})
    assert (answer.status_code, answer.json()["code"]) == (429, "logins")
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "headers",
    [
        {"x-csrf-token": ""},
        {"x-csrf-token": "0" * 43},
        {"origin": "http://elsewhere"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_forged_change_is_refused(desk, headers):
    async with await desk.login() as ada:
        answer = await ada.delete(SESSION, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
        assert (await ada.get(SESSION)).status_code == 200
        good = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
        assert (await ada.delete(SESSION, headers=good)).status_code == 204


async def test_another_sites_page_cannot_log_anybody_in(desk):
    async with desk.client(headers={"origin": "http://elsewhere"}) as client:
        assert (await client.post(SESSION, json={"name": "ada", "password": PASSWORD})).status_code == 403


async def test_a_token_until_it_is_revoked_or_expires(desk):
    async with await desk.token("tenants", name="ci") as ci:
        answer = await ci.get(SESSION)
        assert (answer.json()["kind"], answer.json()["scopes"], answer.json()["csrf"]) == ("token", ["tenants"], "")
        assert (await ci.delete(SESSION)).status_code == 403, "only people log out"
        await desk.store.tokens.revoke("ci", by=BY)
        assert (await ci.get(SESSION)).status_code == 401
    _, secret = await desk.store.tokens.create("ci", ["read"], expires_at=desk.clock.now + HOUR_MS, by=BY)
    async with desk.client(headers={"authorization": f"bearer {secret}"}) as ci:
        assert (await ci.get(SESSION)).status_code == 200
        assert (await desk.store.tokens.one("ci")).last_used_at == desk.clock.now
        desk.clock.now += HOUR_MS
        assert (await ci.get(SESSION)).status_code == 401


@pytest.mark.parametrize("header", ["", "Bearer", "Basic YWRhOnB3", "Bearer efa-" + "0" * 49, "Bearer \x7f"])
async def test_a_bad_token_is_nobody_even_beside_a_good_cookie(desk, header):
    async with await desk.login() as ada:
        answer = await ada.get(SESSION, headers={"authorization": header})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_tenants_key_opens_nothing_here(desk):
    await desk.store.tenants.create("acme", by=BY)
    _, key = await desk.store.keys.create("acme", "k", by=BY)
    async with desk.client(headers={"authorization": f"Bearer {key}"}) as client:
        assert (await client.get(SESSION)).status_code == 401


async def test_metrics_and_probes_need_no_login(desk):
    async with desk.client() as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/health")).status_code == 200
    guards = {route.path: handler.resolve_guards() for route in desk.app.routes for handler in route.route_handlers}
    assert guards["/metrics"] == guards["/health"] == guards["/ready"] == []
    assert guards["/admin/v1/tenants"] != []


async def test_only_the_newest_sessions_of_an_admin_are_kept(desk):
    clients = []
    for number in range(33):
        desk.clock.now += 1
        clients.append(await desk.login(source=f"10.0.1.{number}"))
    states = [(await client.get(SESSION)).status_code for client in clients]
    assert states == [401] + 32 * [200]
    for client in clients:
        await client.aclose()


async def test_logins_and_their_ends_are_on_record(desk):
    async with await desk.login(source="10.9.9.9") as ada:
        await ada.delete(SESSION)
    opened, closed = (await desk.entries())[-2:]
    assert [(e.action, e.actor_kind, e.actor_name, e.source) for e in (opened, closed)] == [
        ("session.open", "admin", "ada", "10.9.9.9"),
        ("session.close", "admin", "ada", "10.9.9.9"),
    ]


async def test_passwords_are_bounded_in_size_and_number(cheap):
    passwords = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1), at_once=1, waiting=0)
    for bad in ("short", "x" * 1025, "\ud800" * 12):
        with pytest.raises(InvalidRecordError, match="password"):
            await passwords.hash(bad)
    passwords._held = 1
    with pytest.raises(UnavailableError):
        await passwords.verify(None, "x")
    passwords._held = 0
    assert await passwords.verify(await passwords.hash(PASSWORD), PASSWORD)
    assert not await passwords.verify(await passwords.hash(PASSWORD), PASSWORD + " ")
    assert not await passwords.verify("no hash", PASSWORD)
    passwords.close()


async def test_a_hash_of_older_parameters_is_made_anew_at_the_next_login(desk):
    old = PasswordHasher(time_cost=2, memory_cost=8, parallelism=1).hash(PASSWORD)
    async with desk.store._database.write() as connection:
        await connection.exec_driver_sql("UPDATE admins SET password = ?", (old,))
    assert await desk.store.admins.verify("ada", PASSWORD)
    async with desk.store._database.read() as connection:
        kept = (await connection.exec_driver_sql("SELECT password FROM admins")).scalar_one()
    assert kept != old
    assert ",t=1," in kept
    assert await desk.store.admins.verify("ada", PASSWORD)
