"""The operators' door of a whole stack: what is changed there holds at the tenants' door at once."""

import asyncio

import httpx

from tests.e2e.clients import PATIENCE_S, eventually
from tests.e2e.clients import command as evenflow

V1 = "/admin/v1"


async def test_from_the_first_login_to_a_key_that_opens_and_is_revoked(null):
    password = (null.directory / ".evenflow" / "admin.password").read_text().strip()
    async with httpx.AsyncClient(base_url=null.admin, timeout=PATIENCE_S, trust_env=False) as admin:
        assert (await admin.get(f"{V1}/tenants")).status_code == 401
        opened = await admin.post(f"{V1}/session", json={"name": "admin", "password": password})
        assert opened.status_code == 201, opened.text
        admin.headers["x-csrf-token"] = opened.json()["csrf"]
        workers = (await admin.get(f"{V1}/workers")).json()["data"]
        assert [worker["state"] for worker in workers] == ["ready"]
        await admin.post(f"{V1}/tenants", json={"name": "by-api"})
        made = await admin.post(f"{V1}/tenants/by-api/keys", json={"name": "k"}, headers={"idempotency-key": "k"})
        key = made.json()["key"]
        bearer = {"authorization": f"Bearer {made.json()['secret']}"}

        async def answers(status):
            return (await admin.get(f"{null.url}/v1/models", headers=bearer)).status_code == status

        await eventually(lambda: answers(200), "the new key opens")
        await admin.delete(f"{V1}/keys/{key['id']}", headers={"if-match": '"1"'})
        await eventually(lambda: answers(401), "the revoked key does not")
        head = (await admin.get(f"{V1}/audit/head")).json()
    noted = f"{head['sequence']}:{head['seal']}"
    assert "entries hold" in await asyncio.to_thread(evenflow, null, "audit", "verify", "--head", noted)
    log = null.directory / ".evenflow" / "log" / "gateway.log"

    async def logged():
        return noted in log.read_text()

    await eventually(logged, "the gateway's log has the head")
    assert password not in log.read_text()
    assert password not in null.output()
