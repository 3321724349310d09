"""The API against its own description: requests made up from it get answers that are in it, and never a 500."""

import asyncio
import contextlib
import os

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.admin.conftest import BY, PASSWORD, Clock, door

EXAMPLES = 60 if os.environ.get("EVENFLOW_PROVE") == "1" else 6
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LEAVES = {("DELETE", "/admin/v1/session"), ("POST", "/admin/v1/session")}
"""They end the session that asks, or slow it down: tests of sessions have them."""


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def opened(runner, sqlite_url, tmp_path, cheap):
    """A door with something of every kind behind it, a client who may do everything, and the names of it all."""

    async def begin():
        opened = door(tmp_path, Clock(), sqlite_url)
        desk = await opened.__aenter__()
        await desk.store.admins.create("ada", PASSWORD, by=BY)
        await desk.store.admins.create("bob", PASSWORD, by=BY)
        await desk.store.tenants.create("acme", by=BY)
        key, _ = await desk.store.keys.create("acme", "k", by=BY)
        await desk.store.tokens.create("ci", ["read"], by=BY)
        client = await desk.login()
        names = {"tenant": "acme", "key": key.id, "admin": "bob", "token": "ci", "worker": "w1"}
        return opened, client, names

    opened, client, names = runner.run(begin())
    yield client, names
    runner.run(client.aclose())
    runner.run(opened.__aexit__(None, None, None))


def test_made_up_requests_get_answers_that_are_described(runner, opened):
    client, names = opened
    described = schemathesis.openapi.from_dict(runner.run(client.get("/admin/v1/openapi.json")).json())
    operations = [result.ok() for result in described.get_all_operations()]
    asked = [operation for operation in operations if (operation.method.upper(), operation.path) not in LEAVES]
    assert len(asked) == len(operations) - len(LEAVES)
    seen = {operation.label: set() for operation in asked}

    def ask(case, *, of_known):
        if of_known:
            case.path_parameters.update({name: names[name] for name in case.path_parameters})
        if any("/" in str(value) for value in case.path_parameters.values()):
            return  # another address
        answer = runner.run(send(client, case))
        if answer is not None:
            case.validate_response(answer, checks=CHECKS)
            seen[case.operation.label].add(answer.status_code)

    for operation in asked:
        for mode in GenerationMode:
            if mode is GenerationMode.NEGATIVE:
                with contextlib.suppress(InvalidArgument):  # nothing about it can be wrong
                    examples(operation, mode, ask)()
            else:
                examples(operation, mode, ask)()
    assert all(seen.values())
    assert set().union(*seen.values()) >= {200, 201, 400, 404, 428}


def examples(operation, mode, ask):
    """A test that makes so many requests of an operation, right or wrong ones, the same in every run."""

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode), st.booleans())
    def made_up(case, of_known):
        ask(case, of_known=of_known)

    return made_up


async def send(client, case):
    """What schemathesis would send by requests, in this process."""
    prepared = requests.Request(**case.as_transport_kwargs(base_url="http://door")).prepare()
    headers = {
        name: value for name, value in prepared.headers.items() if name.lower() not in {"cookie", "authorization"}
    }
    body = prepared.body or b""
    content = body.encode() if isinstance(body, str) else body
    try:
        request = client.build_request(prepared.method, prepared.url, headers=headers, content=content)
    except (httpx.InvalidURL, UnicodeError, ValueError):
        return None
    return await client.send(request)
