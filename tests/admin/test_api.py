"""The operators' API, resource by resource, over a real store."""

import pytest
from sqlalchemy import update

from gateway.admin.problems import HEADERS
from gateway.core.admin_tokens import SCOPES
from gateway.core.keys import well_formed
from gateway.store import schema
from gateway.store.rows import Actor
from shared.errors import StoreError
from shared.wire import Ann, Slots, Version
from tests.admin.conftest import BY

V1 = "/admin/v1"
ANY = {"if-match": "*"}


@pytest.fixture
def desk_url(store_url):
    return store_url


@pytest.fixture
async def ada(desk):
    async with await desk.login() as client:
        yield client


async def walk(client, path, **params):
    """Every row of a list, page by page."""
    found, after = [], None
    while True:
        answer = await client.get(path, params=params | ({"after": after} if after else {}))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["data"]) <= int(params.get("limit", 50))
        found += page["data"]
        if (after := page["next"]) is None:
            return found


async def test_the_life_of_a_tenant(ada):
    made = await ada.post(f"{V1}/tenants", json={"name": "acme", "zone": "Europe/Berlin", "limits": {"streams": 3}})
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    tenant = made.json()
    assert (await ada.get(made.headers["location"])).json() == tenant
    quota = await ada.get(f"{V1}/tenants/acme/quota")
    assert quota.json()["limits"]["streams"] == 3
    changed = await ada.patch(f"{V1}/tenants/acme", json={"disabled": True}, headers={"if-match": '"1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    assert changed.json()["disabled_at"] is not None
    both = {"disabled": False, "zone": "UTC"}
    again = await ada.patch(f"{V1}/tenants/{tenant['id']}", json=both, headers={"if-match": '"2"'})
    assert (again.json()["disabled_at"], again.json()["zone"], again.headers["etag"]) == (None, "UTC", '"3"')


async def test_tenants_in_pages_and_by_search(desk, ada):
    names = sorted(f"{team}-{number}" for team in ("red", "blue") for number in range(7))
    for name in names:
        await desk.store.tenants.create(name, by=BY)
    assert [row["name"] for row in await walk(ada, f"{V1}/tenants", limit=3)] == names
    assert [row["name"] for row in await walk(ada, f"{V1}/tenants", limit=2, search="red")] == names[7:]
    assert await walk(ada, f"{V1}/tenants", search="%") == []
    assert await walk(ada, f"{V1}/tenants", search="_") == []


async def test_the_life_of_a_key(desk, ada):
    await desk.store.tenants.create("acme", by=BY)
    rules = {"models": ["llama-*"], "networks": ["10.0.0.0/8"], "expires_at": desk.clock.now + 10**6}
    made = await ada.post(f"{V1}/tenants/acme/keys", json={"name": "ci", **rules})
    assert made.status_code == 201
    key, secret = made.json()["key"], made.json()["secret"]
    assert well_formed(secret)
    assert {name: key[name] for name in rules} == rules
    assert (await ada.get(made.headers["location"])).json() == key
    path = f"{V1}/keys/{key['id']}"
    changed = await ada.patch(path, json={"models": None, "expires_at": None}, headers={"if-match": '"1"'})
    assert (changed.json()["models"], changed.json()["networks"]) == (None, ["10.0.0.0/8"])
    assert changed.json()["expires_at"] is None
    turned = await ada.post(f"{path}/rotate", json={"overlap_s": 60})
    assert turned.status_code == 201
    assert turned.json()["secret"] != secret
    old = (await ada.get(path)).json()
    assert (old["replaced_by"], old["expires_at"]) == (turned.json()["key"]["id"], desk.clock.now + 60_000)
    gone = await ada.delete(path, headers=ANY)
    assert gone.json()["revoked_at"] == desk.clock.now
    listed = await walk(ada, f"{V1}/tenants/acme/keys", limit=1)
    assert {row["id"] for row in listed} == {key["id"], turned.json()["key"]["id"]}
    assert await walk(ada, f"{V1}/keys", limit=1) == listed
    assert secret not in (await ada.get(f"{V1}/tenants/acme/keys")).text


async def test_the_life_of_limits(desk, ada):
    await desk.store.tenants.create("acme", by=BY)
    key, _ = await desk.store.keys.create("acme", "ci", by=BY)
    path = f"{V1}/tenants/acme/quota"
    assert (await ada.get(path)).status_code == 404
    new = await ada.put(path, json={"tokens": 1000, "strict": True}, headers={"if-none-match": "*"})
    assert (new.status_code, new.headers["etag"]) == (200, '"1"')
    twice = await ada.put(path, json={"tokens": 1000}, headers={"if-none-match": "*"})
    assert twice.status_code == 412
    of_key = {"key": "ci", "model": "org/some model:7b"}
    made = await ada.put(path, json={"requests": 5}, params=of_key, headers={"if-none-match": "*"})
    assert (made.json()["key_id"], made.json()["model"]) == (key.id, "org/some model:7b")
    assert (await ada.get(path, params=of_key)).json() == made.json()
    changed = await ada.put(path, json={"tokens": 2}, headers={"if-match": '"1"'})
    assert (changed.json()["limits"]["tokens"], changed.json()["limits"]["strict"]) == (2, False)
    assert len(await walk(ada, f"{V1}/tenants/acme/quotas", limit=1)) == 2
    cleared = await ada.delete(path, headers={"if-match": '"2"'})
    assert (cleared.status_code, cleared.json()) == (200, changed.json())
    assert (await ada.get(path)).status_code == 404


async def test_the_lives_of_admins_and_tokens(desk, ada):
    made = await ada.post(f"{V1}/admins", json={"name": "bob", "password": "a horse of Bob's"})
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    async with await desk.login("bob", "a horse of Bob's") as bob:
        new = {"password": "another horse of his"}
        assert (await ada.put(f"{V1}/admins/bob/password", json=new, headers={"if-match": '"1"'})).status_code == 200
        assert (await bob.get(f"{V1}/session")).status_code == 401
    out = await ada.patch(f"{V1}/admins/bob", json={"disabled": True}, headers={"if-match": '"2"'})
    assert out.json()["disabled_at"] is not None
    mine = await ada.patch(f"{V1}/admins/ada", json={"disabled": True}, headers=ANY)
    assert (mine.status_code, mine.json()["code"]) == (409, "conflict")
    assert [row["name"] for row in await walk(ada, f"{V1}/admins", limit=1)] == ["ada", "bob"]
    token = await ada.post(f"{V1}/tokens", json={"name": "ci", "scopes": ["read"]})
    secret = token.json()["secret"]
    async with desk.client(headers={"authorization": f"Bearer {secret}"}) as ci:
        assert (await ci.get(f"{V1}/tenants")).status_code == 200
        assert (await ada.delete(f"{V1}/tokens/ci", headers={"if-match": '"1"'})).status_code == 200
        assert (await ci.get(f"{V1}/tenants")).status_code == 401
    assert [row["name"] for row in await walk(ada, f"{V1}/tokens")] == ["ci"]


async def test_the_fleet_as_it_announces_itself(desk, ada):
    version = Version(
        model="m", version="2", digest="d", context=4096, max_output=0, vocab_hash="v", features=("logprobs",)
    )
    said = Ann(wep="e", n=1, state="ready", versions=(version,), slots=Slots(total=4, free=3, decode=1))
    for name in ("w2", "w1"):
        desk.house.fleet.announced(0.0, name, said)
    desk.house.fleet.lost("w2", "e")
    workers = (await ada.get(f"{V1}/workers")).json()["data"]
    assert [(w["name"], w["state"], w["slots"]["free"]) for w in workers] == [("w1", "ready", 3), ("w2", "gone", 3)]
    assert (await ada.get(f"{V1}/workers/w1")).json() == workers[0]
    assert (await ada.get(f"{V1}/workers/w9")).status_code == 404
    (model,) = (await ada.get(f"{V1}/models")).json()["data"]
    assert (model["name"], model["versions"][0]["workers"], model["versions"][0]["ready"]) == ("m", ["w1", "w2"], 1)


REFUSALS = [
    ("PATCH", "/tenants/acme", {}, {"zone": "UTC"}, 428, "precondition_required"),
    ("PATCH", "/tenants/acme", {"if-match": '"9"'}, {"zone": "UTC"}, 412, "stale"),
    ("PATCH", "/tenants/acme", {"if-match": 'W/"1"'}, {"zone": "UTC"}, 412, "stale"),
    ("PATCH", "/tenants/acme", {"if-match": "1"}, {"zone": "UTC"}, 400, "invalid_value"),
    ("PATCH", "/tenants/acme", ANY, {}, 400, "invalid_value"),
    ("PATCH", "/tenants/acme", ANY, {"zone": "Mars/Olympus"}, 400, "invalid_value"),
    ("PATCH", "/tenants/acme", ANY, {"zone": "UTC", "name": "x"}, 400, "invalid_value"),
    ("PATCH", "/tenants/nobody", ANY, {"zone": "UTC"}, 404, "not_found"),
    ("POST", "/tenants", {}, {"name": "acme"}, 409, "conflict"),
    ("POST", "/tenants", {}, {"name": "Not A Name"}, 400, "invalid_value"),
    ("POST", "/tenants", {}, {"name": "x", "limits": {"tokens": -1}}, 400, "invalid_value"),
    ("POST", "/tenants", {}, {"name": "x", "limits": {"tockens": 1}}, 400, "invalid_value"),
    ("POST", "/tenants", {}, {"name": "x" * 100_000}, 413, "payload_too_large"),
    ("GET", "/tenants?limit=201", {}, None, 400, "invalid_value"),
    ("GET", "/tenants?limit=x", {}, None, 400, "invalid_value"),
    ("GET", "/tenants?after=x", {}, None, 400, "invalid_cursor"),
    ("GET", "/tenants?after=WzFd", {}, None, 400, "invalid_cursor"),
    ("GET", "/tenants?search=%00", {}, None, 400, "invalid_value"),
    ("GET", "/tenants/a%00b", {}, None, 400, "invalid_value"),
    ("PUT", "/tenants/acme/quota", {}, {"tokens": 1}, 428, "precondition_required"),
    ("PUT", "/tenants/acme/quota", {"if-match": '"1"'}, {"tokens": 1}, 412, "stale"),
    ("DELETE", "/tenants/acme/quota", ANY, None, 404, "not_found"),
    ("POST", "/tenants/acme/keys", {}, {"name": "k", "networks": ["300.1.1.1"]}, 400, "invalid_value"),
    ("POST", "/tenants/acme/keys", {}, {"name": "k", "expires_at": 1}, 400, "invalid_value"),
    ("DELETE", "/keys/nothing", ANY, None, 404, "not_found"),
    ("DELETE", "/tokens/nothing", {}, None, 428, "precondition_required"),
    ("POST", "/tokens", {}, {"name": "x", "scopes": ["people"]}, 400, "invalid_value"),
    ("POST", "/admins", {}, {"name": "x", "password": "short"}, 400, "invalid_value"),
    ("PUT", "/tenants", {}, {}, 405, "method_not_allowed"),
    ("GET", "/nothing", {}, None, 404, "unknown_url"),
]


async def test_every_refusal_is_a_problem_that_says_why(desk, ada):
    await desk.store.tenants.create("acme", by=BY)
    before = await desk.store.revision()
    for method, path, headers, body, status, code in REFUSALS:
        answer = await ada.request(method, V1 + path, headers=headers, json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (method, path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == status
        assert problem["title"]
        assert problem["detail"]
        assert problem["type"] == f"urn:evenflow:problem:{code}"
        assert problem["request_id"] == answer.headers["x-request-id"]
    assert await desk.store.revision() == before


async def test_a_faulty_field_is_named(ada):
    answer = await ada.post(f"{V1}/tenants", json={"name": "x", "zone": 3})
    assert "zone" in answer.text
    answer = await ada.get(f"{V1}/tenants", params={"limit": 0})
    assert answer.json()["errors"][0]["field"] == "limit"


async def test_every_answer_tells_browsers_what_not_to_do(ada):
    for path in ("/tenants", "/session", "/nothing", "/tenants/nobody"):
        answer = await ada.get(V1 + path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


_SAFE = {
    "tenants": "/tenants", "keys": "/keys/x", "quotas": "/tenants/acme/quotas", "fleet": "/workers", "audit": "/audit",
    "usage": "/usage",
}  # fmt: skip
_UNSAFE = {
    "tenants": ("PATCH", "/tenants/acme"), "keys": ("DELETE", "/keys/x"), "quotas": ("DELETE", "/tenants/acme/quota")
}  # fmt: skip


async def test_a_token_does_what_its_scopes_say_and_nothing_else(desk):
    await desk.store.tenants.create("acme", by=BY)
    for scope in SCOPES:
        async with await desk.token(scope) as token:
            for subject, path in _SAFE.items():
                allowed = scope == subject or (scope == "read" and subject != "audit")
                assert ((await token.get(V1 + path)).status_code == 403) is not allowed, (scope, path)
            for subject, (method, path) in _UNSAFE.items():
                answer = await token.request(method, V1 + path)
                assert (answer.status_code == 403) is (scope != subject), (scope, path)
            for path in ("/admins", "/tokens"):
                assert (await token.get(V1 + path)).json()["code"] == "scope"


def test_every_route_says_what_it_needs_and_only_the_login_needs_nobody(desk):
    """One that says nothing fails whoever asks; this is where it is noticed."""
    known = {*SCOPES, "people", "anyone", "nobody"} - {"read"}
    open_to_all = {f"{V1}/openapi.json", f"{V1}/docs"}
    for route in desk.app.routes:
        if not route.path.startswith(V1) or route.path in open_to_all:
            continue
        for handler in route.route_handlers:
            if "OPTIONS" in handler.http_methods:
                continue
            assert handler.opt.get("needs") in known, route.path
            login = (route.path, set(handler.http_methods)) == (f"{V1}/session", {"POST"})
            assert (handler.opt["needs"] == "nobody") is login, route.path


async def test_without_a_store_there_is_an_honest_503(desk, ada, monkeypatch):
    def broken(_self):
        raise OSError("disk I/O error at a path of ours")

    monkeypatch.setattr("gateway.store.database.AsyncEngine.connect", broken)
    for answer in (
        await ada.get(f"{V1}/tenants"),
        await ada.post(f"{V1}/tenants", json={"name": "x"}),
        await ada.post(f"{V1}/session", json={"name": "ada", "password": "x"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert "path" not in answer.text


async def test_what_nobody_meant_to_raise_is_a_500_that_says_nothing(desk, ada, monkeypatch):
    def broken(*_args, **_more):
        raise RuntimeError("the secret is swordfish")

    monkeypatch.setattr(desk.store.pages, "tenants", broken)
    answer = await ada.get(f"{V1}/tenants")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "swordfish" not in answer.text


async def test_a_kept_answer_that_was_tampered_with_is_not_believed(desk, ada):
    named = {"idempotency-key": "one"}
    assert (await ada.post(f"{V1}/tenants", json={"name": "acme"}, headers=named)).status_code == 201
    async with desk.store._database.write() as connection:
        await connection.execute(update(schema.idempotency).values(body=b"x" * 64))
    assert (await ada.post(f"{V1}/tenants", json={"name": "acme"}, headers=named)).status_code == 503


def test_store_errors_of_every_kind_have_a_status():
    """Each class under StoreError is judged by itself, so that a new one is thought about."""
    assert {kind.__name__ for kind in StoreError.__subclasses__()} == {
        "InvalidRecordError", "UnknownRecordError", "ConflictError", "StaleRecordError"
    }  # fmt: skip


def test_an_identity_is_the_actor_of_the_audit_log():
    from gateway.admin.sessions import Identity

    assert Identity("token", "t1", "ci", ("read",), "10.0.0.1").actor == Actor("token", "t1", "ci", "10.0.0.1")
