"""The audit log: complete, true, without secrets, and proof against whoever can write to the database."""

import re

import pytest
from msgspec import structs
from sqlalchemy.exc import IntegrityError

from gateway.admin.sessions import SAFE
from gateway.core import audit
from gateway.store.audit import Filter
from shared.errors import ConflictError, StoreError
from tests.admin.conftest import BY, PASSWORD

V1 = "/admin/v1"
ANY = {"if-match": "*"}
SOURCE = "10.7.7.7"


@pytest.fixture
def desk_url(store_url):
    return store_url


async def prepare(desk):
    """Something to change of every kind; ids by kind."""
    await desk.store.tenants.create("acme", by=BY)
    key, _ = await desk.store.keys.create("acme", "k", by=BY)
    await desk.store.quotas.set("acme", limits(), by=BY)
    await desk.store.admins.create("bob", PASSWORD, by=BY)
    await desk.store.tokens.create("ci", ["read"], by=BY)
    return key.id


def limits():
    from gateway.core.accounts import Limits

    return Limits(tokens=5)


# Each unsafe route: a request that it takes, and the actions that it leaves on record.
CHANGES = {
    ("POST", "/session"): ("/session", {"json": {"name": "ada", "password": PASSWORD}}, ["session.open"]),
    ("DELETE", "/session"): ("/session", {}, ["session.close"]),
    ("POST", "/tenants"): ("/tenants", {"json": {"name": "n", "limits": {"tokens": 1}}}, 2 * ["tenant.create"]),
    ("PATCH", "/tenants/{tenant:str}"): ("/tenants/acme", {"json": {"zone": "UTC"}}, ["tenant.update"]),
    ("POST", "/tenants/{tenant:str}/keys"): ("/tenants/acme/keys", {"json": {"name": "n"}}, ["key.create"]),
    ("PATCH", "/keys/{key:str}"): ("/keys/KEY", {"json": {"models": ["m"]}}, ["key.update"]),
    ("POST", "/keys/{key:str}/rotate"): ("/keys/KEY/rotate", {"json": {}}, 2 * ["key.rotate"]),
    ("DELETE", "/keys/{key:str}"): ("/keys/KEY", {}, ["key.revoke"]),
    ("PUT", "/tenants/{tenant:str}/quota"): ("/tenants/acme/quota", {"json": {"tokens": 9}}, ["quota.set"]),
    ("DELETE", "/tenants/{tenant:str}/quota"): ("/tenants/acme/quota", {}, ["quota.clear"]),
    ("POST", "/admins"): ("/admins", {"json": {"name": "n", "password": PASSWORD}}, ["admin.create"]),
    ("PATCH", "/admins/{admin:str}"): ("/admins/bob", {"json": {"disabled": True}}, ["admin.disable"]),
    ("PUT", "/admins/{admin:str}/password"): ("/admins/bob/password", {"json": {"password": PASSWORD}}, ["admin.password"]),
    ("POST", "/tokens"): ("/tokens", {"json": {"name": "n", "scopes": ["read"]}}, ["token.create"]),
    ("DELETE", "/tokens/{token:str}"): ("/tokens/ci", {}, ["token.revoke"]),
}  # fmt: skip


def unsafe_routes(app):
    return {
        (method, route.path) for route in app.routes for method in getattr(route, "methods", ()) if method not in SAFE
    }


async def test_every_unsafe_route_leaves_an_entry_with_the_right_actor_and_source(desk):
    """Walks what the app really has: a new route that is not in the list fails here."""
    found = {(method, path.removeprefix(V1)) for method, path in unsafe_routes(desk.app) if path.startswith(V1)}
    assert found == set(CHANGES)
    key = await prepare(desk)
    for (method, route), (path, request, actions) in sorted(CHANGES.items(), key=lambda item: item[0][0] == "DELETE"):
        async with await desk.login(source=SOURCE) as ada:
            before = len(await desk.entries())
            answer = await ada.request(method, V1 + path.replace("KEY", key), headers=ANY, **request)
            assert answer.status_code < 300, (method, route, answer.text)
        entries = (await desk.entries())[before:]
        assert [entry.action for entry in entries] == actions, (method, route)
        assert {(e.actor_kind, e.actor_name, e.source) for e in entries} == {("admin", "ada", SOURCE)}, (method, route)
    assert (await desk.store.audit.verify()).broken is None


async def test_a_tokens_changes_are_its_own(desk):
    await prepare(desk)
    async with await desk.token("tenants", name="deploy") as token:
        await token.post(f"{V1}/tenants", json={"name": "n"})
    last = (await desk.entries())[-1]
    row = await desk.store.tokens.one("deploy")
    assert (last.actor_kind, last.actor_name, last.actor_id) == ("token", "deploy", row.id)


async def test_no_secret_is_ever_in_the_log(desk):
    key_id = await prepare(desk)
    secrets = [PASSWORD, "a horse of Bob's", "another horse of his"]
    async with await desk.login() as ada:
        secrets += [ada.headers["x-csrf-token"], *ada.cookies.values()]
        made = await ada.post(f"{V1}/tenants/acme/keys", json={"name": "n"}, headers={"idempotency-key": "one"})
        turned = await ada.post(f"{V1}/keys/{key_id}/rotate", json={})
        token = await ada.post(f"{V1}/tokens", json={"name": "n", "scopes": ["read"]})
        secrets += [answer.json()["secret"] for answer in (made, turned, token)]
        await ada.post(f"{V1}/admins", json={"name": "eve", "password": "a horse of Bob's"})
        new = {"password": "another horse of his"}
        await ada.put(f"{V1}/admins/eve/password", json=new, headers=ANY)
        await ada.delete(f"{V1}/session")
    kept = await desk.rows("SELECT hash FROM keys") + await desk.rows("SELECT hash FROM admin_tokens")
    hashes = [bytes(row.hash) for row in kept]
    hashes += [row.password for row in await desk.rows("SELECT password FROM admins")]
    whole = "\n".join(str(tuple(entry)) for entry in await desk.entries())
    assert len(secrets) == 8
    assert "key.create" in whole
    for secret in secrets:
        assert len(secret) >= 12
        assert secret not in whole
        assert secret[9:] not in whole, "nor most of it"
    for hashed in hashes:
        for form in (hashed, str(hashed)) if isinstance(hashed, str) else (hashed.hex(), str(hashed)):
            assert form not in whole


async def test_the_tables_refuse_to_forget(desk):
    await prepare(desk)
    for statement in ("UPDATE audit SET actor_name = 'x'", "DELETE FROM audit", "DELETE FROM audit WHERE sequence = 1"):
        with pytest.raises((StoreError, ConflictError, IntegrityError), match="only grows"):
            await desk.run(statement)
    assert (await desk.store.audit.verify()).broken is None


async def tamper(desk, *statements, **values):
    """What somebody may do who owns the database, triggers or not."""
    if desk.store._database.engine.dialect.name == "postgresql":
        unbarred = ["ALTER TABLE audit DISABLE TRIGGER ALL"]
    else:
        unbarred = [f"DROP TRIGGER IF EXISTS audit_no_{verb}" for verb in ("update", "delete")]
    await desk.run(*unbarred, *statements, **values)


async def test_a_changed_entry_is_found(desk):
    await prepare(desk)
    for column in audit.Entry.__struct_fields__[1:]:
        ((before,),) = await desk.rows(f"SELECT {column} FROM audit WHERE sequence = 3")
        put = f"UPDATE audit SET {column} = :value WHERE sequence = 3"
        await tamper(desk, put, value=7 if column == "at" else "7")
        verdict = await desk.store.audit.verify()
        assert (verdict.entries, verdict.broken.sequence) == (2, 3), column
        assert "not as it was written" in verdict.broken.why
        await tamper(desk, put, value=before)
        assert (await desk.store.audit.verify()).broken is None


@pytest.mark.parametrize("sequence", [1, 3])
async def test_a_deleted_entry_is_found(desk, sequence):
    await prepare(desk)
    await tamper(desk, f"DELETE FROM audit WHERE sequence = {sequence}")
    broken = (await desk.store.audit.verify()).broken
    assert (broken.sequence, "missing" in broken.why) == (sequence, True)


async def test_closing_the_gap_behind_a_deleted_entry_does_not_help(desk):
    await prepare(desk)
    await tamper(
        desk,
        "DELETE FROM audit WHERE sequence = 3",
        "UPDATE audit SET sequence = 3 WHERE sequence = 4",
        "UPDATE audit SET previous = (SELECT hash FROM audit WHERE sequence = 2) WHERE sequence = 3",
    )
    assert (await desk.store.audit.verify()).broken.sequence == 3


async def test_a_forged_tail_is_found(desk):
    """By somebody who knows how the chain is made, but not the pepper."""
    await prepare(desk)
    last = (await desk.entries())[-1]
    entry = audit.Entry(
        last.sequence + 1, last.at, "admin", "x", "ada", SOURCE, "tenant.update", "tenant", "x", "y", None, None
    )
    forged = audit.seal(audit.sealing_key(b"another pepper of 32 bytes or so"), bytes(last.hash), entry)
    values = structs.asdict(entry) | {"previous": forged.previous, "hash": forged.hash}
    names = ", ".join(f":{name}" for name in values)
    await tamper(desk, f"INSERT INTO audit VALUES ({names})", **values)
    verdict = await desk.store.audit.verify()
    assert verdict.broken.sequence == entry.sequence


async def test_a_tail_that_was_cut_off_or_made_anew_shows_against_a_noted_head(desk):
    await prepare(desk)
    noted = await desk.store.audit.head()
    assert (await desk.store.audit.verify(expected=noted)).broken is None
    await tamper(desk, f"DELETE FROM audit WHERE sequence = {noted.sequence}")
    assert (await desk.store.audit.verify()).broken is None
    assert (await desk.store.audit.verify(expected=noted)).broken.sequence == noted.sequence
    await desk.store.tenants.create("another", by=BY)  # the log has that number again
    assert (await desk.store.audit.verify()).broken is None
    assert "noted" in (await desk.store.audit.verify(expected=noted)).broken.why


async def test_a_log_longer_than_one_reading_is_checked_whole(desk, monkeypatch):
    monkeypatch.setattr("gateway.store.audit._AT_ONCE", 2)
    await prepare(desk)
    seen = []
    count = len(await desk.entries())
    assert count > 4
    assert (await desk.store.audit.verify(watch=seen.append)).entries == count
    assert seen == [*range(2, count, 2), count]
    await tamper(desk, f"UPDATE audit SET source = 'x' WHERE sequence = {count}")
    assert (await desk.store.audit.verify()).broken.sequence == count


@pytest.mark.parametrize("at_once", [1, 2, 1000])
async def test_two_histories_of_one_store_do_not_join(desk, monkeypatch, at_once):
    """One of a restored backup, say: each entry is truly sealed, whether or not one reading ends between them."""
    monkeypatch.setattr("gateway.store.audit._AT_ONCE", at_once)
    await prepare(desk)
    while len(kept := await desk.entries()) % 2:
        await desk.store.tenants.create(f"even{len(kept)}", by=BY)
    first = kept[-1]
    await tamper(desk, f"DELETE FROM audit WHERE sequence = {first.sequence}")
    for name in ("another", "history"):
        await desk.store.tenants.create(name, by=BY)
    assert (await desk.store.audit.verify()).broken is None
    values = dict(first._mapping)
    names = ", ".join(f":{name}" for name in values)
    gone = f"DELETE FROM audit WHERE sequence = {first.sequence}"
    await tamper(desk, gone, f"INSERT INTO audit VALUES ({names})", **values)
    broken = (await desk.store.audit.verify()).broken
    assert (broken.sequence, "does not follow" in broken.why) == (first.sequence + 1, True)


async def test_an_empty_log_holds(desk):
    await tamper(desk, "DELETE FROM audit")
    verdict = await desk.store.audit.verify()
    assert (verdict.entries, verdict.head.sequence, verdict.broken) == (0, 0, None)


async def test_entries_in_pages_and_by_filter(desk):
    key = await prepare(desk)
    async with await desk.token("audit") as reader:

        async def ask(**params):
            found, after = [], None
            while True:
                page = (await reader.get(f"{V1}/audit", params=params | ({"after": after} if after else {}))).json()
                found += page["data"]
                if (after := page["next"]) is None:
                    return found

        everything = await ask(limit=2)
        assert [entry["sequence"] for entry in everything] == list(range(len(everything), 0, -1))
        assert {entry["kind"] for entry in await ask(kind="key")} == {"key"}
        assert [entry["action"] for entry in await ask(object_id=key)] == ["key.create"]
        assert [entry["object_name"] for entry in await ask(action="tenant.create")] == ["acme"]
        assert {entry["actor_name"] for entry in await ask(actor="test")} == {"test"}
        assert await ask(until=desk.clock.now) == []
        assert len(await ask(since=desk.clock.now)) == len(everything)
        (made,) = await ask(action="tenant.create")
        assert (made["before"], made["after"]["name"]) == (None, "acme")
        head = (await reader.get(f"{V1}/audit/head")).json()
        assert head["sequence"] == everything[0]["sequence"]
        assert re.fullmatch("[0-9a-f]{64}", head["seal"])
    assert await desk.store.audit.page(Filter(kind="none"), before=None, most=5) == ()
