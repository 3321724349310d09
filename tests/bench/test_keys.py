"""A hundred thousand keys of ten thousand tenants: what reading them costs at the start, and checking one at the door.

`make test` does the same with a fiftieth of them, for what is right and not for how fast; the figures count under
EVENFLOW_PROVE.
"""

import json
import subprocess
import sys

import msgspec
import pytest
from sqlalchemy import insert

from gateway.core.keys import display, fingerprint, new_key
from gateway.store import schema
from gateway.store.store import Store
from shared.settings import Settings, StoreSettings
from tests.e2e.clients import PROVE

pytestmark = pytest.mark.timeout(600)

KEYS, TENANTS = (100_000, 10_000) if PROVE else (2_000, 200)
CHECK_S, START_S = 20e-6, 3.0
AT_ONCE = 5_000

CHILD = """
import asyncio, gc, json, sys, time, types
import msgspec
import sqlalchemy.dialects.sqlite.aiosqlite, aiosqlite, alembic.command  # a gateway has them before it has keys
from gateway.core.freshness import Freshness
from gateway.core.guessing import Guesses
from gateway.core.keys import new_key
from gateway.core.networks import compiled
from gateway.http.stream import AsgiExchange
from gateway.services.keyring import Keyring
from gateway.services.last_used import LastUsed
from gateway.steps.authenticate import identify
from gateway.store.store import Store
from shared.settings import Settings

def resident():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmRSS"].split()[0]) / 1024

async def main(settings, count):
    store = await Store.open(settings)
    gc.collect()
    before, began = resident(), time.perf_counter()
    keyring = Keyring(store.pepper, time.time)
    keyring.load(await store.snapshot())
    read = time.perf_counter() - began
    gc.collect()
    after = resident()
    house = types.SimpleNamespace(keyring=keyring, freshness=Freshness(), guesses=Guesses(30),
                                  trusted=compiled(["10.0.0.0/8"]), last_used=LastUsed(time.time))
    numbers = [number * 7919 % count for number in range(min(count, 5000))]
    asked = [AsgiExchange({"headers": [(b"authorization", b"Bearer " + new_key(number.to_bytes(32, "big")).encode()),
                                       (b"x-forwarded-for", b"192.0.2.1")], "client": ("10.0.0.1", 1)}, None, None)
             for number in numbers]
    took = []
    for _ in range(5):
        began = time.perf_counter()
        found = [identify(house, exchange) for exchange in asked]
        took.append((time.perf_counter() - began) / len(asked))
    assert [int(principal.key_id) for principal in found] == numbers
    moment = keyring.moment
    began = time.perf_counter()
    assert await store.revision() == keyring.revision
    poll = time.perf_counter() - began
    print(json.dumps({"keys": len(keyring), "tenants": len({principal.tenant_id for principal in found}), "read_s": read, "check_s": min(took),
                      "poll_s": poll, "before_mb": before, "after_mb": after}))
    await store.close()

asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Settings), int(sys.argv[2])))
"""


@pytest.fixture
async def settings(tmp_path):
    """A store full of keys, made of the numbers from 0 on."""
    files = StoreSettings(url=f"sqlite+aiosqlite:///{tmp_path}/store.db", pepper_file=str(tmp_path / "pepper"))
    settings = msgspec.structs.replace(Settings(), store=files)
    store = await Store.open(settings)
    try:
        async with store._database.write() as connection:
            tenants = [{"id": f"{n:036}", "name": f"t{n}", "created_at": 1} for n in range(TENANTS)]
            await connection.execute(insert(schema.tenants), tenants)
            for start in range(0, KEYS, AT_ONCE):
                await connection.execute(
                    insert(schema.keys), [row(store, n) for n in range(start, min(KEYS, start + AT_ONCE))]
                )
    finally:
        await store.close()
    return settings


def row(store, number):
    secret = new_key(number.to_bytes(32, "big"))
    return {
        "id": f"{number:036}",
        "tenant_id": f"{number % TENANTS:036}",
        "name": f"k{number}",
        "hash": fingerprint(store.pepper, secret),
        "display": display(secret),
        "created_at": 1,
        "models": json.dumps(["a", "llama-*"]) if number % 3 == 0 else None,
        "networks": json.dumps(["192.0.2.0/24", "2001:db8::/32"]) if number % 2 == 0 else None,
    }


async def test_many_keys_are_read_soon_and_checked_at_once(settings):
    given = [msgspec.json.encode(settings).decode(), str(KEYS)]
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, *given], capture_output=True, text=True, timeout=500, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["keys"] == KEYS
    assert told["tenants"] == min(TENANTS, 5000)
    print(
        f"\n{KEYS} keys of {TENANTS} tenants: read in {told['read_s']:.2f} s, checked in {told['check_s'] * 1e6:.1f} us,"
        f" polled in {told['poll_s'] * 1e3:.1f} ms; resident {told['before_mb']:.0f} MB before, {told['after_mb']:.0f} after"
    )
    if PROVE:
        assert told["read_s"] <= START_S
        assert told["check_s"] <= CHECK_S
