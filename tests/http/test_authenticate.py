"""Who is let in, from where, for what, and what everybody else is told."""

import asyncio
import json
import types

import httpx
import pytest

from gateway.app import _app
from gateway.core.freshness import CUT_OFF_S, Freshness
from gateway.core.guessing import Guesses
from gateway.core.keys import fingerprint, new_key
from gateway.core.networks import compiled
from gateway.http import problems
from gateway.http.openai import openai_routes
from gateway.http.stream import AsgiExchange
from gateway.services.keyring import Keyring
from gateway.services.last_used import LastUsed
from gateway.steps.authenticate import authenticate, identify
from gateway.store.rows import CredentialRow, Snapshot
from shared.errors import AuthenticationError, HttpError, PermissionDeniedError, RateLimitError, UnavailableError
from shared.settings import Settings

PEPPER, NOW_S = b"p" * 32, 1_700_000_000.0
KEY, BAD = new_key(b"1" * 32), new_key(b"2" * 32)


def house(*, bad_keys=3, trusted=(), **rules):
    keyring = Keyring(PEPPER, lambda: NOW_S)
    keyring.load(Snapshot("s", 1, (CredentialRow(fingerprint(PEPPER, KEY), "k1", "t1", "acme", None, **rules),)))
    return types.SimpleNamespace(
        keyring=keyring,
        freshness=Freshness(),
        guesses=Guesses(bad_keys),
        trusted=compiled(trusted),
        last_used=LastUsed(lambda: NOW_S),
        settings=Settings(),
        streams=types.SimpleNamespace(inbox=lambda _drop: None),
    )


def exchange(key=KEY, *, peer="192.0.2.1", forwarded=(), body=b""):
    lines = [(b"authorization", b"Bearer " + key.encode())] if key else []
    lines += [(b"x-forwarded-for", line.encode()) for line in forwarded]

    async def receive():
        return {"type": "http.request", "body": body}

    return AsgiExchange({"headers": lines, "client": (peer, 1) if peer else None}, receive, None)


async def test_a_good_key_is_let_in_and_noted():
    here = house()
    assert identify(here, exchange()).tenant_name == "acme"
    assert here.last_used._seen == {"k1": int(NOW_S * 1000)}


@pytest.mark.parametrize(
    ("peer", "forwarded", "let_in"),
    [
        ("198.51.100.7", (), True),
        ("192.0.2.1", (), False),
        ("::ffff:198.51.100.7", (), True),
        ("2001:db8::1", (), True),
        ("", (), False),
        ("192.0.2.1", ("198.51.100.7",), False),  # what anybody can claim
        ("10.0.0.1", ("198.51.100.7",), True),
        ("10.0.0.1", ("198.51.100.7, 192.0.2.1",), False),
        ("10.0.0.1", ("192.0.2.1", "198.51.100.7"), True),
        ("10.0.0.1", ("198.51.100.7, \xff\x00",), False),
    ],
)
async def test_a_key_that_may_be_used_from_some_networks_only(peer, forwarded, let_in):
    here = house(networks=("198.51.100.0/24", "2001:db8::/32"), trusted=["10.0.0.0/8"])
    asked = exchange(peer=peer, forwarded=forwarded)
    if let_in:
        assert identify(here, asked)
        return
    with pytest.raises(PermissionDeniedError) as caught:
        identify(here, asked)
    assert (caught.value.status, caught.value.code) == (403, "ip_not_allowed")
    assert "198.51.100.0" not in str(caught.value)
    assert not here.last_used._seen


async def test_a_key_needs_the_scope():
    here = house(scopes=("usage",))
    assert identify(here, exchange(), "usage")
    with pytest.raises(PermissionDeniedError) as caught:
        identify(here, exchange())
    assert (caught.value.code, caught.value.kind) == ("scope_missing", "permission_error")


async def test_many_bad_keys_from_one_source_are_told_to_wait_while_good_ones_work():
    here = house(bad_keys=3)
    for _ in range(3):
        with pytest.raises(AuthenticationError):
            identify(here, exchange(BAD))
    with pytest.raises(RateLimitError) as caught:
        identify(here, exchange("nonsense"))
    assert (caught.value.code, caught.value.kind) == ("too_many_bad_keys", "rate_limit_error")
    status, headers, _ = problems.render(caught.value, "r")
    assert status == 429
    assert int(dict(headers)[b"retry-after"]) == 20
    assert identify(here, exchange())
    with pytest.raises(AuthenticationError):
        identify(here, exchange(BAD, peer="192.0.2.2"))


async def test_a_source_is_who_asks_and_not_the_proxy():
    here = house(bad_keys=1, trusted=["10.0.0.0/8"])
    for client in ("192.0.2.1", "192.0.2.2"):
        with pytest.raises(AuthenticationError):
            identify(here, exchange(BAD, peer="10.0.0.1", forwarded=(client,)))
    with pytest.raises(RateLimitError):
        identify(here, exchange(BAD, peer="10.0.0.1", forwarded=("192.0.2.2",)))


async def test_a_whole_site_of_ipv6_is_one_source():
    here = house(bad_keys=1)
    with pytest.raises(AuthenticationError):
        identify(here, exchange(BAD, peer="2001:db8::1"))
    with pytest.raises(RateLimitError):
        identify(here, exchange(BAD, peer="2001:db8::ffff:2"))


async def test_a_request_without_a_key_is_no_guess():
    here = house(bad_keys=1)
    for _ in range(5):
        with pytest.raises(AuthenticationError, match="didn't provide"):
            identify(here, exchange(""))
    assert len(here.guesses) == 0


async def test_keys_that_may_be_stale_are_not_served():
    here = house()
    here.freshness.returned(asyncio.get_running_loop().time())
    for key in (KEY, BAD, ""):
        with pytest.raises(UnavailableError) as caught:
            identify(here, exchange(key))
        assert (caught.value.status, caught.value.code, caught.value.retryable) == (503, "keys_stale", True)
    here.freshness.read(asyncio.get_running_loop().time(), 1)
    assert identify(here, exchange())


def asking(model="m"):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}]})
    return exchange(body=body.encode())


ARRIVAL = types.SimpleNamespace(endpoint="chat", own_id="o", request_id="r")


async def test_completions_wait_for_the_bus_and_lists_do_not():
    here = house()
    here.freshness.heard(asyncio.get_running_loop().time() - CUT_OFF_S - 1)
    with pytest.raises(UnavailableError) as caught:
        await authenticate(here, asking(), ARRIVAL)
    assert caught.value.code == "cut_off"
    assert identify(here, exchange())


@pytest.mark.parametrize(
    ("models", "model", "allowed"),
    [
        (None, "m", True),
        (("m",), "m", True),
        (("m",), "n", False),
        (("llama-*",), "llama-3", True),
        (("llama-*",), "m", False),
    ],
)
async def test_a_key_that_may_use_some_models_only(models, model, allowed):
    here = house(models=models)
    if allowed:
        assert (await authenticate(here, asking(model), ARRIVAL)).ask.model == model
        return
    with pytest.raises(PermissionDeniedError) as caught:
        await authenticate(here, asking(model), ARRIVAL)
    assert (caught.value.status, caught.value.code, caught.value.param) == (403, "model_not_allowed", "model")


@pytest.mark.parametrize("key", [BAD, "x", "ef-", KEY[:-1], KEY.lower()])
async def test_one_message_for_every_kind_of_bad_key(key):
    with pytest.raises(HttpError) as caught:
        identify(house(), exchange(key))
    assert (str(caught.value), caught.value.code) == (str(AuthenticationError()), "invalid_api_key")


async def test_lists_hold_what_the_key_may_use_and_nothing_else_exists():
    here = house(models=("a", "org/*"))
    here.created = 1
    here.fleet = types.SimpleNamespace(models=lambda: {"a", "b", "org/m"})
    app = _app(openai_routes(here))
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door", headers=headers) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        statuses = {name: (await client.get(f"/v1/models/{name}")).status_code for name in ("a", "b", "c", "org/m")}
        told = [(await client.get(f"/v1/models/{name}")).json()["error"] for name in ("b", "c")]
    assert [card["id"] for card in listed] == ["a", "org/m"]
    assert statuses == {"a": 200, "b": 404, "c": 404, "org/m": 200}
    assert told[0] | {"message": ""} == told[1] | {"message": ""}
    assert told[0]["message"].replace("'b'", "'c'") == told[1]["message"]
