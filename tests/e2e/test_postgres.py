"""A whole Evenflow on PostgreSQL: served, on record, managed from beside it; and what its loss costs, which is nothing."""

import json
import time

import httpx
import pytest

from tests.e2e.clients import chat, command
from tests.e2e.stack import running
from tests.store.postgres import name_of

pytestmark = pytest.mark.timeout(240)
SOON_S = 60.0


@pytest.fixture
def stack(tmp_path, postgres_url):
    with running(tmp_path, STORE__URL=postgres_url, WORKERS__0__ENGINE="null", WORKERS__0__NULL_TOKENS="9") as one:
        yield one


def ask(stack, key="", status=200):
    """One answer; its request id."""
    body = chat("x", model="null", stream=False)
    headers = {"authorization": f"Bearer {key or stack.key}"}
    answer = httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers, timeout=30)
    assert answer.status_code == status, answer.text
    return answer.headers["x-request-id"]


def until(what):
    """What it gives, once that is anything."""
    end = time.monotonic() + SOON_S
    while not (found := what()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found


def test_requests_are_served_and_stand_in_its_tables_and_survive_its_restart(stack, postgres, postgres_url):
    assert not (stack.directory / ".evenflow" / "evenflow.db").exists()

    def row(request):
        return postgres.sql(
            f"SELECT outcome, charged, tenant_id FROM usage WHERE request_id = '{request}'", name_of(postgres_url)
        )

    request = ask(stack)
    [found] = until(lambda: row(request))
    outcome, charged, tenant = found.split("|")
    assert (outcome, charged) == ("stop", "9")
    assert postgres.sql(f"SELECT name FROM tenants WHERE id = '{tenant}'", name_of(postgres_url)) == ["demo"]
    [listed] = json.loads(command(stack, "usage", "list", "--json"))
    assert (listed["request_id"], listed["charged"]) == (request, 9)

    command(stack, "tenant", "create", "acme")
    key = command(stack, "key", "create", "acme", "laptop")
    until(lambda: httpx.get(f"{stack.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200)
    ask(stack, key)

    postgres.stop()
    try:
        without = [ask(stack), ask(stack, key)]
    finally:
        postgres.start()
    for request in without:
        [found] = until(lambda request=request: row(request))
        assert found.startswith("stop|9|")
    command(stack, "key", "revoke", "laptop")
    until(lambda: httpx.get(f"{stack.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 401)
    assert stack.stop() == 0
