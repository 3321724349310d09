"""Keys at two real gateways on one NATS and one store: what is changed holds on both, whatever was away meanwhile."""

import asyncio
import contextlib
import itertools
import os
import signal
import time

import httpx
import msgspec
import openai
import pytest

from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.settings import Settings, StoreSettings
from tests.e2e.clients import PROVE, chat, command, eventually
from tests.e2e.second_gateway import beside
from tests.e2e.stack import running

pytestmark = pytest.mark.timeout(180)

BY = Actor("local", name="test")
ROUNDS = 30 if PROVE else 3
BAD_KEYS = 80
PROXIES = {"GATEWAY__TRUSTED_PROXIES": "127.0.0.0/8", "LIMITS__BAD_KEYS_PER_MINUTE": str(BAD_KEYS)}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("keys"), WORKERS__0__ENGINE="null", WORKERS__0__NULL_TOKENS="3", **PROXIES
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def second(stack):
    with beside(stack) as gateway:
        yield gateway


@pytest.fixture
async def store(stack):
    state = stack.directory / ".evenflow"
    files = StoreSettings(url=f"sqlite+aiosqlite:///{state}/evenflow.db", pepper_file=str(state / "pepper"))
    opened = await Store.open(msgspec.structs.replace(Settings(), store=files))
    with contextlib.suppress(Exception):
        await opened.tenants.create("acme", by=BY)
    yield opened
    await opened.close()


@pytest.fixture
async def http():
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        yield client


async def ask(http, gateway, key, model="null", source="192.0.2.1"):
    """One short completion: its status and error code."""
    headers = {"authorization": f"Bearer {key}", "x-forwarded-for": source}
    body = chat("x", model=model, stream=False)
    answer = await http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)
    return answer.status_code, answer.json().get("error", {}).get("code")


async def becomes(http, gateway, key, expected, **options):
    """Seconds until that is the answer."""

    async def is_so():
        return await ask(http, gateway, key, **options) == expected

    return await eventually(is_so, f"{expected} at {gateway.url}", within_s=30)


OK, REFUSED = (200, None), (401, "invalid_api_key")
_elsewhere = itertools.count()


async def test_a_revoked_key_stops_on_both_gateways(stack, second, store, http):
    worst = {}
    for number in range(ROUNDS):
        row, key = await store.keys.create("acme", f"r{number}", by=BY)
        for gateway in (stack, second):
            await becomes_good(http, gateway, key)
        await store.keys.revoke(row.id, by=BY)
        revoked = time.monotonic()
        await asyncio.gather(*(refused(http, gateway, key, revoked, worst) for gateway in (stack, second)))
    print(f"\n{ROUNDS} keys revoked by another process: refused after {max(worst.values()):.2f} s at the latest")
    if PROVE:
        assert max(worst.values()) < 1.0


async def test_a_key_revoked_at_one_gateways_operators_door_stops_on_both_by_word_of_mouth(stack, second, store, http):
    token = await asyncio.to_thread(command, stack, "admin", "token", "create", "revoker", "--scope", "keys")
    worst = {}
    for number in range(ROUNDS):
        row, key = await store.keys.create("acme", f"o{number}", by=BY)
        for gateway in (stack, second):
            await becomes_good(http, gateway, key)
        url = f"{stack.admin}/admin/v1/keys/{row.id}"
        answer = await http.delete(url, headers={"authorization": f"Bearer {token}", "if-match": "*"})
        assert answer.status_code == 200, answer.text
        revoked = time.monotonic()
        await asyncio.gather(*(refused(http, gateway, key, revoked, worst) for gateway in (stack, second)))
    print(f"\n{ROUNDS} keys revoked at one gateway: refused after {max(worst.values()):.2f} s at the latest")
    if PROVE:
        assert max(worst.values()) < 1.0


async def becomes_good(http, gateway, key):
    """A key that is not known yet is a bad one: each try comes from somewhere else."""

    async def good():
        number = next(_elsewhere)
        return await ask(http, gateway, key, source=f"198.51.{number // 250 % 256}.{number % 250}") == OK

    await eventually(good, "the new key is taken", within_s=30)


async def refused(http, gateway, key, since, worst):
    while await ask(http, gateway, key) != REFUSED:
        assert time.monotonic() - since < 30, "a revoked key is still taken"
        await asyncio.sleep(0.002)
    worst[gateway] = max(worst.get(gateway, 0.0), time.monotonic() - since)


async def test_both_keys_work_while_a_rotation_lasts(stack, second, store, http):
    old, key = await store.keys.create("acme", "rotated", by=BY)
    for gateway in (stack, second):
        await becomes_good(http, gateway, key)
    _, newer = await store.keys.rotate(old.id, 3600, by=BY)
    _, newest = await store.keys.rotate("rotated", 0, by=BY)
    for gateway in (stack, second):
        await becomes_good(http, gateway, newest)
        assert await ask(http, gateway, key) == OK
        assert await ask(http, gateway, newer) == REFUSED


async def test_rules_hold_at_the_door_and_are_told_as_clients_understand(stack, store, http):
    rules = {"models": ["other-*"], "networks": ["192.0.2.0/24"]}
    row, key = await store.keys.create("acme", "ruled", by=BY, **rules)
    await becomes(http, stack, key, (403, "model_not_allowed"), source="192.0.2.200")
    assert await ask(http, stack, key, source="203.0.113.9") == (403, "ip_not_allowed")
    assert await ask(http, stack, key, source="192.0.2.1, 203.0.113.9") == (403, "ip_not_allowed")
    assert await ask(http, stack, key, model="other-1") == (404, "model_not_found")
    headers = {"x-forwarded-for": "192.0.2.1"}
    async with openai.AsyncOpenAI(
        base_url=f"{stack.url}/v1", api_key=key, max_retries=0, default_headers=headers
    ) as client:
        with pytest.raises(openai.PermissionDeniedError, match="may not use the model 'null'"):
            await client.completions.create(model="null", prompt="x")
        assert [model.id async for model in client.models.list()] == []
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("null")
        await store.keys.update(row.id, models=None, scopes=["usage"], by=BY)
        await becomes(http, stack, key, (403, "scope_missing"))
        await store.keys.update(row.id, scopes=["inference"], by=BY)
        await becomes(http, stack, key, OK)
        assert [model.id async for model in client.models.list()] == ["null"]
        assert (await client.models.retrieve("null")).id == "null"


async def test_bad_keys_are_slowed_by_source_and_good_ones_are_not(stack, http):
    bad = "ef-" + "0" * 49
    answers = [await ask(http, stack, bad, source="192.0.2.77") for _ in range(BAD_KEYS)]
    assert answers == [REFUSED] * BAD_KEYS
    many = await asyncio.gather(*(ask(http, stack, bad, source="192.0.2.77") for _ in range(BAD_KEYS)))
    assert (429, "too_many_bad_keys") in many
    assert await ask(http, stack, stack.key, source="192.0.2.77") == OK
    assert await ask(http, stack, bad, source="192.0.2.78") == REFUSED


async def test_a_key_revoked_while_a_gateway_was_dead_is_refused_by_its_next_life(stack, second, store, http):
    row, key = await store.keys.create("acme", "outlived", by=BY)
    await becomes_good(http, second, key)
    second.process.kill()
    second.process.wait(30)
    await store.keys.revoke(row.id, by=BY)
    await asyncio.to_thread(second.start)
    assert await ask(http, second, key) == REFUSED
    await becomes(http, second, second.key, OK)


async def test_cut_off_from_nats_no_gateway_lets_anybody_in_and_none_comes_back_with_old_keys(
    stack, second, store, http
):
    row, key = await store.keys.create("acme", "cut", by=BY)
    for gateway in (stack, second):
        await becomes_good(http, gateway, key)
    [pid] = stack.pids("nats-server")
    os.kill(pid, signal.SIGSTOP)
    try:
        for gateway in (stack, second):
            await becomes_cut_off(http, gateway, key)
        assert (await http.get(f"{second.url}/ready")).status_code == 503
        await store.keys.revoke(row.id, by=BY)
    finally:
        os.kill(pid, signal.SIGCONT)
    for gateway in (stack, second):
        seen = await asyncio.gather(*(settled(http, gateway, one) for one in (key, stack.key)))
        assert [answers[-1] for answers in seen] == [REFUSED, OK]
        assert OK not in seen[0]


async def becomes_cut_off(http, gateway, key):
    """Requests let in before the silence was noticed wait for an answer that does not come: each is given up soon."""

    async def cut_off():
        with contextlib.suppress(httpx.TimeoutException):
            headers = {"authorization": f"Bearer {key}"}
            body = chat("x", model="null", stream=False)
            answer = await http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=0.5)
            return answer.json().get("error", {}).get("code") == "cut_off"
        return False

    await eventually(cut_off, "cut off", within_s=40)


async def settled(http, gateway, key):
    """All answers until one is neither `cut_off` nor another sign of a start."""
    seen = [await ask(http, gateway, key)]
    async with asyncio.timeout(60):
        while seen[-1][0] == 503:
            await asyncio.sleep(0.01)
            seen.append(await ask(http, gateway, key))
    return seen


async def test_when_a_key_was_used_is_known_when_its_gateway_has_stopped(stack, second, store, http):
    row, key = await store.keys.create("acme", "noted", by=BY)
    await becomes_good(http, second, key)
    assert await asyncio.to_thread(second.stop) == 0
    assert 0 <= time.time() * 1000 - (await store.keys.one(row.id)).last_used_at < 120_000
