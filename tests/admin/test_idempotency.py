"""Creations that name themselves: made once, answered alike, their secrets kept sealed."""

import asyncio

import pytest

from gateway.admin import idempotency
from gateway.store.repeats import ABANDONED_MS, KEPT_MS
from tests.admin.conftest import BY

V1 = "/admin/v1"
NAMED = {"idempotency-key": "7f3c"}


@pytest.fixture
def desk_url(store_url):
    return store_url


@pytest.fixture
async def ada(desk):
    await desk.store.tenants.create("acme", by=BY)
    async with await desk.login() as client:
        yield client


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(idempotency, "_POLL_S", 0.001)


async def test_a_repetition_is_answered_alike_secret_and_all(desk, ada, tmp_path):
    first = await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"}, headers=NAMED)
    again = await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"}, headers=NAMED)
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert first.headers["location"] == again.headers["location"]
    assert (first.headers.get("idempotency-replayed"), again.headers["idempotency-replayed"]) == (None, "true")
    assert len(await desk.store.keys.all("acme")) == 1
    secret = first.json()["secret"].encode()
    assert not any(secret in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


async def test_without_a_name_each_counts(desk, ada):
    assert (await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"})).status_code == 201
    assert (await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"})).status_code == 409


@pytest.mark.parametrize(
    ("path", "body"), [("/tenants/acme/keys", {"name": "other"}), ("/tokens", {"name": "k", "scopes": ["read"]})]
)
async def test_another_request_of_the_same_name_is_refused(ada, path, body):
    await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"}, headers=NAMED)
    answer = await ada.post(V1 + path, json=body, headers=NAMED)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")


async def test_names_are_each_ones_own(desk, ada):
    await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"}, headers=NAMED)
    async with await desk.token("keys") as token:
        answer = await token.post(f"{V1}/tenants/acme/keys", json={"name": "k2"}, headers=NAMED)
    assert answer.status_code == 201


async def test_of_many_at_the_same_time_one_is_made(desk, ada):
    asked = [ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"}, headers=NAMED) for _ in range(12)]
    answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["secret"] for answer in answers}) == 1
    assert len(await desk.store.keys.all("acme")) == 1


async def test_an_error_is_not_kept(desk, ada):
    body = {"name": "k", "models": [""]}
    assert (await ada.post(f"{V1}/tenants/acme/keys", json=body, headers=NAMED)).status_code == 400
    assert (await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"}, headers=NAMED)).status_code == 201


async def test_one_that_never_came_back_frees_its_name_after_a_minute(desk, ada, monkeypatch):
    monkeypatch.setattr(idempotency, "WAIT_S", 0.0)
    who = f"admin:{(await desk.store.admins.one('ada')).id}"

    async def ask():
        return await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"}, headers=NAMED)

    digests = []
    original = idempotency._digest

    async def noted(request):
        digests.append(await original(request))
        return digests[-1]

    monkeypatch.setattr(idempotency, "_digest", noted)
    assert (await ada.post(f"{V1}/tenants/acme/keys", json={"name": "k"})).status_code == 201
    await desk.store.keys.revoke("k", by=BY, tenant="acme")
    assert digests == []
    await ask()  # learns the digest
    await desk.store.keys.revoke("k", by=BY, tenant="acme")
    async with desk.store._database.write() as connection:
        await connection.exec_driver_sql("DELETE FROM idempotency")
    assert await desk.store.repeats.begin(who, "7f3c", digests[0]) is None
    waiting = await ask()
    assert (waiting.status_code, waiting.json()["code"]) == (409, "under_way")
    assert int(waiting.headers["retry-after"]) >= 1
    desk.clock.now += ABANDONED_MS
    assert (await ask()).status_code == 201


async def test_answers_are_kept_for_a_day(desk, ada):
    assert (await ada.post(f"{V1}/tenants", json={"name": "one"}, headers=NAMED)).status_code == 201
    desk.clock.now += KEPT_MS
    async with await desk.login() as ada_again:
        answer = await ada_again.post(f"{V1}/tenants", json={"name": "two"}, headers=NAMED)
    assert answer.status_code == 201
