"""Several real processes that open the same store, and make the same pepper, at the same moment."""

import asyncio
import json
import subprocess
import sys
from itertools import pairwise

import msgspec
import pytest

from gateway.core import audit
from gateway.store import migrate as migrating
from gateway.store.engine import new_engine
from gateway.store.migrate import migrate
from gateway.store.pepper import read_pepper
from gateway.store.store import Store
from shared.errors import SettingsError, StoreError
from tests.e2e.clients import PROVE
from tests.store.raw import rows

PROCESSES = 4
OPEN = """
import asyncio, json, sys, time
import msgspec
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.settings import Settings

BY = Actor("local", name="test")
settings = msgspec.json.decode(sys.argv[1], type=Settings)
async def main():
    import alembic.command  # not what is raced for
    print("here", flush=True)
    sys.stdin.readline()
    store = await Store.open(settings)
    await store.tenants.create(sys.argv[2], by=BY)
    key, secret = await store.keys.create(sys.argv[2], "k", by=BY)
    print(json.dumps([store.store_id, store.pepper.hex(), await store.revision()]), flush=True)
    await store.close()
asyncio.run(main())
"""


CHANGE = """
import asyncio, json, sys
import msgspec
from gateway.store.rows import Actor
from gateway.store.store import Store
from shared.settings import Settings

async def main():
    store = await Store.open(msgspec.json.decode(sys.argv[1], type=Settings))
    print("here", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[3])):
        await store.tenants.create(f"{sys.argv[2]}-{number}", by=Actor("local", name=sys.argv[2]))
    await store.close()
asyncio.run(main())
"""


def race(settings, program=OPEN, *arguments):
    """Run the program in several processes, from the same moment on; what they printed after it."""
    encoded = msgspec.json.encode(settings).decode()
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, encoded, f"t{i}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(PROCESSES)
    ]
    try:
        for child in children:
            assert child.stdout.readline() == "here\n", child.stderr.read()
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        results = [child.communicate(timeout=60) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    for child, (_, errors) in zip(children, results, strict=True):
        assert child.returncode == 0, errors
    return [output for output, _ in results]


@pytest.mark.parametrize("_again", range(10 if PROVE else 2))
async def test_processes_that_open_a_new_store_at_once_agree(empty_settings, _again):
    settings = empty_settings
    results = [json.loads(output) for output in await asyncio.to_thread(race, settings)]
    assert len({store_id for store_id, _, _ in results}) == 1
    assert len({pepper for _, pepper, _ in results}) == 1
    store = await Store.open(settings)
    assert await store.revision() == 2 * PROCESSES
    assert len((await store.snapshot()).credentials) == PROCESSES
    await store.close()


async def test_the_audit_log_of_processes_that_change_at_once_is_one_chain(settings):
    """No entry is missing, and no two follow the same one; every change is on record once, in each one's own order."""
    each = 100 if PROVE else 25
    store = await Store.open(settings)
    await asyncio.to_thread(race, settings, CHANGE, str(each))
    names = audit.Entry.__struct_fields__
    found = await rows(settings, f"SELECT {', '.join(names)}, previous, hash FROM audit ORDER BY sequence")
    chain = [audit.Sealed(audit.Entry(*row[:-2]), row[-2], row[-1]) for row in found]
    assert audit.verify(audit.sealing_key(store.pepper), chain) is None
    assert len(chain) == PROCESSES * each == await store.revision()
    for process in range(PROCESSES):
        mine = [sealed.entry.object_name for sealed in chain if sealed.entry.actor_name == f"t{process}"]
        assert mine == [f"t{process}-{number}" for number in range(each)]
    turns = sum(one.entry.actor_name != two.entry.actor_name for one, two in pairwise(chain))
    assert turns > PROCESSES - 1, "they ran at once, not one after the other"
    await store.close()


async def test_migrating_waits_for_the_lock(sqlite_settings, tmp_path, monkeypatch):
    """With the lock held elsewhere nothing is migrated; the wait ends with a clear error."""
    settings = sqlite_settings
    monkeypatch.setattr(migrating, "LOCK_WAIT_S", 0.0)
    lock = tmp_path / "new" / "store.db.lock"
    lock.parent.mkdir()
    hold = (
        "import fcntl, sys\nfile = open(sys.argv[1], 'ab')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(lock)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert await asyncio.to_thread(holder.stdout.readline) == b"held\n"
        engine = new_engine(settings.store.url)
        with pytest.raises(StoreError, match="another process has held"):
            await migrate(engine)
        await engine.dispose()
        assert not (tmp_path / "new" / "store.db").exists()
    finally:
        holder.communicate(timeout=30)


def test_the_pepper_is_private_random_and_kept(tmp_path):
    path = tmp_path / "deep" / "pepper"
    pepper = read_pepper(path, create=True)
    assert len(pepper) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert read_pepper(path, create=True) == pepper == read_pepper(path, create=False)
    assert list(path.parent.iterdir()) == [path]
    assert read_pepper(tmp_path / "other", create=True) != pepper


def test_the_pepper_that_was_linked_first_wins(tmp_path, monkeypatch):
    path = tmp_path / "pepper"
    monkeypatch.setattr(type(path), "exists", lambda _: False)  # the other process comes right after the look
    path.write_bytes(b"w" * 32)
    assert read_pepper(path, create=True) == b"w" * 32
    assert list(tmp_path.iterdir()) == [path]


def test_a_pepper_that_cannot_be_used(tmp_path):
    with pytest.raises(SettingsError, match=r"^store\.pepper_file: .*must exist"):
        read_pepper(tmp_path / "none", create=False)
    (tmp_path / "short").write_bytes(b"x" * 31)
    with pytest.raises(SettingsError, match="holds 31 bytes"):
        read_pepper(tmp_path / "short", create=True)
    (tmp_path / "directory").mkdir()
    with pytest.raises(SettingsError, match="cannot use"):
        read_pepper(tmp_path / "directory", create=True)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match="cannot use"):
        read_pepper(tmp_path / "file" / "pepper", create=True)
