import asyncio
import logging

import pytest
import structlog

from gateway.core.accounts import Limits
from gateway.core.freshness import Freshness
from gateway.core.keys import fingerprint, new_key
from gateway.services import keyring as keyrings
from gateway.services.keyring import Keyring, Principal
from gateway.store.rows import Actor, Changes, CredentialRow, Moment, QuotaRow, Snapshot
from gateway.store.store import Store
from shared.errors import AuthenticationError, StoreError
from shared.settings import Settings, StoreSettings

BY = Actor("local", name="test")

PEPPER = b"p" * 32
NOW_S = 1_700_000_000.0
KEY = new_key(b"1" * 32)


class Clock:
    def __init__(self):
        self.now = NOW_S

    def __call__(self):
        return self.now


def credential(key=KEY, *, key_id="k1", expires_at=None, pepper=PEPPER):
    return CredentialRow(fingerprint(pepper, key), key_id, "t1", "acme", expires_at)


def snapshot(*credentials, revision=1):
    return Snapshot("s1", revision, credentials)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def keyring(clock):
    return Keyring(PEPPER, clock)


@pytest.fixture(autouse=True)
def logs():
    with structlog.testing.capture_logs() as captured:
        yield captured


def test_a_key_is_who_it_belongs_to(keyring):
    keyring.load(snapshot(credential()))
    assert keyring.check(KEY) == Principal("t1", "acme", "k1")
    assert len(keyring) == 1


@pytest.mark.parametrize(
    "presented",
    ["", "Bearer " + KEY, KEY[:-1], KEY + "x", KEY.upper(), new_key(b"2" * 32), "\ud800" * 52, "é" * 52, "x" * 10**6],
)
def test_anything_else_is_refused_with_one_message(keyring, presented):
    keyring.load(snapshot(credential()))
    with pytest.raises(AuthenticationError) as caught:
        keyring.check(presented)
    assert str(caught.value) == str(AuthenticationError())
    assert caught.value.code == "invalid_api_key"


def test_before_the_first_snapshot_nobody_gets_in(keyring):
    assert keyring.revision is None
    with pytest.raises(AuthenticationError):
        keyring.check(KEY)


def test_a_key_of_another_pepper_is_refused(keyring):
    keyring.load(snapshot(credential(pepper=b"q" * 32)))
    with pytest.raises(AuthenticationError):
        keyring.check(KEY)


def test_a_key_expires_by_the_clock(keyring, clock):
    keyring.load(snapshot(credential(expires_at=int(NOW_S * 1000) + 1500)))
    clock.now = NOW_S + 1.499
    assert keyring.check(KEY).key_id == "k1"
    clock.now = NOW_S + 1.5
    with pytest.raises(AuthenticationError):
        keyring.check(KEY)


def test_a_new_snapshot_replaces_the_old_one_whole(keyring):
    other = new_key(b"2" * 32)
    keyring.load(snapshot(credential()))
    keyring.load(snapshot(credential(other, key_id="k2"), revision=2))
    assert keyring.check(other).key_id == "k2"
    assert keyring.revision == 2
    with pytest.raises(AuthenticationError):
        keyring.check(KEY)


class Source:
    """A store whose answers the test chooses. Counts what it was asked."""

    def __init__(self):
        self.now = snapshot(credential())
        self.news: Changes | None = None
        self.error: BaseException | None = None
        self.loads = 0

    async def revision(self):
        if self.error is not None:
            raise self.error
        return self.now.revision

    async def snapshot(self):
        self.loads += 1
        return self.now

    async def changes(self, since):
        return self.news


class Sleeper:
    """Sleeps that end when the test says so, and not before."""

    def __init__(self):
        self.slept: list[float] = []
        self._asleep: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def __call__(self, seconds):
        self.slept.append(seconds)
        event = asyncio.Event()
        self._asleep.put_nowait(event)
        await event.wait()

    async def fall_asleep(self):
        """Wait until the task sleeps; returns what wakes it."""
        return await asyncio.wait_for(self._asleep.get(), 10)


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def sleeper():
    return Sleeper()


async def test_watching_loads_what_changed_and_only_then(keyring, source, sleeper):
    async with keyring.watch(source, sleep=sleeper) as watch:
        asleep = await sleeper.fall_asleep()
        assert keyring.check(KEY)
        asleep.set()
        asleep = await sleeper.fall_asleep()
        assert source.loads == 1
        source.now = snapshot(revision=2)  # the key is revoked
        asleep.set()
        await sleeper.fall_asleep()
        with pytest.raises(AuthenticationError):
            keyring.check(KEY)
        assert sleeper.slept == [0.5, 0.5, 0.5]
        assert watch.stale_since is None


async def test_a_restored_backup_with_a_lower_revision_is_loaded(keyring, source, sleeper):
    source.now = snapshot(revision=9)
    async with keyring.watch(source, sleep=sleeper):
        asleep = await sleeper.fall_asleep()
        source.now = snapshot(credential(), revision=3)
        asleep.set()
        await sleeper.fall_asleep()
        assert keyring.check(KEY)


async def test_while_the_store_is_away_keys_go_on_working_and_count_as_stale(keyring, source, sleeper, clock, logs):
    async with keyring.watch(source, sleep=sleeper) as watch:
        asleep = await sleeper.fall_asleep()
        source.error = StoreError("gone")
        for _ in range(6):
            clock.now += 0.5
            asleep.set()
            asleep = await sleeper.fall_asleep()
        assert keyring.check(KEY)
        assert watch.stale_since == NOW_S
        assert watch.stale_s == 3.0
        assert "3 s ago" in watch.concern()
        assert sleeper.slept == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0]
        assert [e["log_level"] for e in logs if e["event"] == "keyring.stale"] == ["warning"] * 6
        source.error = None
        asleep.set()
        await sleeper.fall_asleep()
        assert watch.stale_since is None
        assert (watch.stale_s, watch.concern()) == (0.0, "")
        assert sleeper.slept[-1] == 0.5


async def test_a_failing_snapshot_keeps_the_old_keys_and_is_tried_again(keyring, source, sleeper):
    async with keyring.watch(source, sleep=sleeper) as watch:
        asleep = await sleeper.fall_asleep()
        good, source.now = source.now, Snapshot("s1", 2, (object(),))  # type: ignore[arg-type]  # cannot be loaded
        asleep.set()
        asleep = await sleeper.fall_asleep()
        assert keyring.check(KEY)
        assert keyring.revision == 1
        assert watch.stale_since is not None
        source.now = snapshot(*good.credentials, revision=2)
        asleep.set()
        await sleeper.fall_asleep()
        assert (keyring.revision, watch.stale_since) == (2, None)


async def test_a_store_that_never_answers_is_given_up(keyring, source, sleeper, monkeypatch):
    monkeypatch.setattr(keyrings, "POLL_TIMEOUT_S", 0.0)

    async def never():
        await asyncio.Event().wait()

    source.revision = never
    async with keyring.watch(source, sleep=sleeper) as watch:
        await sleeper.fall_asleep()
        assert watch.stale_since is not None


async def test_overdue_polls_count_as_stale_even_if_nothing_failed(keyring, source, sleeper, clock):
    async with keyring.watch(source, sleep=sleeper) as watch:
        await sleeper.fall_asleep()  # and never wakes again
        clock.now += 2.0
        assert watch.stale_since is None
        clock.now += 0.1
        assert watch.stale_since == NOW_S


@pytest.mark.parametrize("how", ["killed", "cancelled"])
async def test_a_task_that_died_is_replaced(keyring, source, sleeper, how, logs):
    class Killed(BaseException):
        pass

    async with keyring.watch(source, every_s=0.001, sleep=sleeper) as watch:
        asleep = await sleeper.fall_asleep()
        first = watch._task
        if how == "killed":
            source.error = Killed()
            asleep.set()
            with pytest.raises(Killed):
                await first
        else:
            first.cancel()
            await asyncio.wait({first})
        assert watch.stale_since is not None
        source.error, source.now = None, snapshot(revision=2)
        await sleeper.fall_asleep()
        assert watch._task is not first
        assert (keyring.revision, watch.stale_since) == (2, None)
    died = [e for e in logs if e["event"] == "keyring.watch_died"]
    assert [e["log_level"] for e in died] == ["error"]


async def test_a_key_revoked_by_another_process_is_refused_after_the_next_poll(store_url, tmp_path, sleeper, clock):
    files = StoreSettings(url=store_url, pepper_file=str(tmp_path / "pepper"))
    here, there = [await Store.open(Settings(store=files)) for _ in range(2)]
    try:
        await there.tenants.create("acme", limits=Limits(streams=2), by=BY)
        row, secret = await there.keys.create("acme", "k", by=BY)
        keyring = Keyring(here.pepper, clock)
        async with keyring.watch(here, sleep=sleeper):
            asleep = await sleeper.fall_asleep()
            assert keyring.check(secret) == Principal(row.tenant_id, "acme", row.id)
            await there.keys.revoke(row.id, by=BY)
            asleep.set()
            await sleeper.fall_asleep()
            with pytest.raises(AuthenticationError):
                keyring.check(secret)
    finally:
        await here.close()
        await there.close()


async def test_closing_ends_the_task_for_good(keyring, source, sleeper, logs):
    watch = keyring.watch(source, sleep=sleeper)
    watch.start()
    await sleeper.fall_asleep()
    task = watch._task
    await watch.close()
    assert task.done()
    await watch.close()
    assert not [e for e in logs if e["event"] == "keyring.watch_died"]
    assert not [t for t in asyncio.all_tasks() if t.get_name() == "keyring-watch"]


async def test_no_key_is_ever_logged(keyring, source, sleeper, logs, caplog):
    caplog.set_level(logging.DEBUG)
    async with keyring.watch(source, sleep=sleeper):
        await sleeper.fall_asleep()
        keyring.check(KEY)
        with pytest.raises(AuthenticationError):
            keyring.check(new_key(b"3" * 32))
    assert "ef-" not in repr(logs) + caplog.text


async def test_keys_that_may_do_the_same_share_what_says_so(keyring):
    rows = [
        CredentialRow(bytes([n]) * 32, f"k{n}", "t1", "acme", None, models=("m",) if n % 2 else None) for n in range(6)
    ]
    keyring.load(snapshot(*rows))
    assert len({id(principal.rules) for principal in keyring._principals.values()}) == 2


def changed(revision, *credentials, touched=(), quotas=None):
    return Changes(Moment(revision, revision, b"h"), tuple(touched), credentials, quotas)


async def test_only_what_changed_is_taken_over(keyring):
    other = new_key(b"2" * 32)
    told = []
    keyring.on_load = told.append
    keyring.load(snapshot(credential(), credential(other, key_id="k2")))
    row = CredentialRow(fingerprint(PEPPER, KEY), "k1", "t1", "acme", None, models=("m",))
    keyring.apply(changed(2, row, touched=[fingerprint(PEPPER, key) for key in (KEY, other)]))
    assert keyring.check(KEY).rules.models == {"m"}
    with pytest.raises(AuthenticationError):
        keyring.check(other)
    assert (keyring.revision, keyring.moment, len(keyring), len(told)) == (2, Moment(2, 2, b"h"), 1, 1)
    limits = (QuotaRow("t1", "", "", Limits(tokens=3), 1, 1),)
    keyring.apply(changed(3, quotas=limits))
    assert (told[-1].quotas, told[-1].credentials, len(keyring)) == (limits, (), 1)


async def test_changes_that_cannot_be_taken_over_change_nothing(keyring):
    keyring.load(snapshot(credential()))
    bad = CredentialRow(b"x" * 32, "k2", "t1", "acme", None, networks=("nowhere",))
    with pytest.raises(ValueError, match="nowhere"):
        keyring.apply(changed(2, bad, touched=[fingerprint(PEPPER, KEY)]))
    assert keyring.check(KEY)
    assert keyring.revision == 1


async def test_a_watch_reads_on_from_where_it_was_and_anew_where_it_has_to(keyring, source, sleeper):
    source.now = Snapshot("s1", 1, (credential(),), (), Moment(1, 1, b"a"))
    async with keyring.watch(source, sleep=sleeper):
        asleep = await sleeper.fall_asleep()
        source.now = Snapshot("s1", 2, (), (), Moment(2, 2, b"b"))
        source.news = changed(2, touched=[fingerprint(PEPPER, KEY)])
        asleep.set()
        asleep = await sleeper.fall_asleep()
        assert (source.loads, len(keyring), keyring.revision) == (1, 0, 2)
        source.now = Snapshot("s1", 3, (credential(),), (), Moment(3, 3, b"c"))
        source.news = None
        asleep.set()
        await sleeper.fall_asleep()
        assert (source.loads, len(keyring), keyring.revision) == (2, 1, 3)


async def test_a_watch_looks_at_once_when_it_is_told_to(keyring, source, sleeper):
    async with keyring.watch(source, sleep=sleeper) as watch:
        await sleeper.fall_asleep()  # and is not woken
        source.now = snapshot(revision=2)
        watch.look_now()
        await sleeper.fall_asleep()
        assert (len(keyring), keyring.revision) == (0, 2)


async def test_what_is_owed_is_read_at_the_usual_pace_and_settles(keyring, source, sleeper):
    fresh = Freshness()
    loop = asyncio.get_running_loop()
    async with keyring.watch(source, freshness=fresh, sleep=sleeper) as watch:
        asleep = await sleeper.fall_asleep()
        source.error = StoreError("gone")
        for _ in range(4):
            asleep.set()
            asleep = await sleeper.fall_asleep()
        assert not fresh.stale(loop.time())  # the store is down, and nothing says that anything changed
        fresh.announced(loop.time(), 2)
        watch.look_now()
        for _ in range(3):
            asleep = await sleeper.fall_asleep()
            asleep.set()
        assert fresh.stale(loop.time())
        await sleeper.fall_asleep()
        assert sleeper.slept[-3:] == [0.5] * 3
        source.error = None
        watch.look_now()
        await sleeper.fall_asleep()
        assert fresh.fault(loop.time()) is None
