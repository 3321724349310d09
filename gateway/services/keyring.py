"""Every valid key in memory: checking one touches no disk, no network and no other task.

A key is looked up by its HMAC, which nobody without the pepper can steer: how long the look-up takes tells nothing
about any key that exists. The store stays the truth: `watch` polls its revision and loads what changed when it moved,
at once when it is told to look, so that a revocation holds on every gateway in under a second. `Freshness` knows when
keys in memory may not be believed.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, Self

import msgspec
import structlog

from gateway.core.freshness import Freshness
from gateway.core.keys import well_formed
from gateway.core.rules import EVERYTHING, Rules, compile_rules
from gateway.store.rows import Changes, CredentialRow, Moment, Snapshot
from shared.errors import AuthenticationError

log = structlog.get_logger("evenflow.keyring")

POLL_TIMEOUT_S = 5.0
LOAD_TIMEOUT_S = 60.0
"""For reading all keys, where that has to be."""
BACK_OFF_MOST = 8
"""A failing poll is repeated after 1, 2, 4, then always 8 times the usual pause."""
STALE_AFTER = 4
"""Pauses without a good poll, after which the keys count as stale whatever the task thinks of itself."""
_NEVER = float("inf")


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Who a request is for, and what the key may do. `zone` is the calendar that the tenant's budgets go by."""

    tenant_id: str
    tenant_name: str
    key_id: str
    zone: str = "UTC"
    rules: Rules = EVERYTHING
    expires_at_s: float = _NEVER


class Source(Protocol):
    """What `watch` needs of a store."""

    async def revision(self) -> int:
        """A number that differs once something changed."""
        ...

    async def snapshot(self) -> Snapshot:
        """All valid keys, as of one moment."""
        ...

    async def changes(self, since: Moment) -> Changes | None:
        """What became of keys after that moment; None if all have to be read."""
        ...


class Keyring:
    """Keys by fingerprint. `clock` gives seconds since 1970, as `time.time`; keys expire by it."""

    def __init__(self, pepper: bytes, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The hash state after the pepper: copied for each key, it spares half of the work.
        self._keyed = hmac.new(pepper, digestmod="sha256")
        self._principals: dict[bytes, Principal] = {}
        self._store_id = ""
        self.revision: int | None = None
        """Of the store, as it was read last; `None` before the first time."""
        self.moment: Moment | None = None
        """From where on changes are read; `None` if everything has to be."""
        self.on_load: Callable[[Snapshot], None] = lambda _snapshot: None
        """Called with each snapshot, and, when limits changed, with one that has no keys: what else is kept of it
        moves together with the keys."""

    def __len__(self) -> int:
        return len(self._principals)

    def load(self, snapshot: Snapshot) -> None:
        """Take over a snapshot whole: checks see all of the old one or all of the new one."""
        self._principals = _principals(snapshot.credentials)
        self._store_id = snapshot.store_id
        self.revision, self.moment = snapshot.revision, snapshot.moment
        self.on_load(snapshot)

    def apply(self, changes: Changes) -> None:
        """Take over what changed: checks see all of it or nothing."""
        news = _principals(changes.credentials)
        for digest in changes.touched:
            self._principals.pop(digest, None)
        self._principals.update(news)
        self.moment = changes.moment
        self.revision = changes.moment.revision
        if changes.quotas is not None:
            self.on_load(Snapshot(self._store_id, self.revision, (), changes.quotas, self.moment))

    def check(self, presented: str) -> Principal:
        """The principal of a key.

        Raises:
            AuthenticationError: Malformed, unknown, revoked or expired: the same message for each.
        """
        if well_formed(presented):
            keyed = self._keyed.copy()
            keyed.update(presented.encode("ascii"))
            principal = self._principals.get(keyed.digest())
            if principal is not None and self._clock() < principal.expires_at_s:
                return principal
        raise AuthenticationError

    def watch(
        self,
        store: Source,
        every_s: float = 0.5,
        *,
        freshness: Freshness | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> "KeyringWatch":
        """Keep up with `store`, from `start` to `close` of what is returned, or within `async with`."""
        return KeyringWatch(self, store, every_s, clock=self._clock, freshness=freshness or Freshness(), sleep=sleep)


class KeyringWatch:
    """The task that keeps a keyring up to date. It outlives every error of the store, and its own death."""

    def __init__(
        self,
        keyring: Keyring,
        store: Source,
        every_s: float,
        *,
        clock: Callable[[], float],
        freshness: Freshness,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._keyring = keyring
        self._freshness = freshness
        self._store = store
        self._every_s = every_s
        self._clock = clock
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._wanted = asyncio.Event()
        self._failures = 0
        self._fresh_at = clock()

    @property
    def stale_since(self) -> float | None:
        """Seconds since 1970 of the last good poll, once later ones failed or are overdue; `None` while all is well.

        Read off the clock, not off the task: a task that hangs or died is noticed all the same.
        """
        overdue = self._clock() - self._fresh_at > STALE_AFTER * self._every_s
        return self._fresh_at if self._failures or overdue else None

    @property
    def stale_s(self) -> float:
        """Seconds since the last good poll, once later ones failed or are overdue; 0 while all is well."""
        since = self.stale_since
        return 0.0 if since is None else self._clock() - since

    def concern(self) -> str:
        """What an operator should know; empty while all is well."""
        stale = self.stale_s
        return f"keys are as of {stale:.0f} s ago: the store does not answer since" if stale else ""

    def start(self) -> None:
        """Start polling."""
        self._fresh_at = self._clock()
        self._spawn()

    async def close(self) -> None:
        """Stop polling; returns when the task has ended."""
        self._closing = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def look_now(self) -> None:
        """Do not wait for the next turn: something is known to have changed."""
        self._wanted.set()

    async def poll(self) -> bool:
        """Look once, and load what changed. False, and logged, if the store did not answer."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                revision = await self._store.revision()
            if revision != self._keyring.revision:
                await self._load()
        except Exception as error:  # noqa: BLE001  # whatever it is, the keys in memory go on serving, if they may
            self._failures += 1
            self._freshness.failed()
            log.warning("keyring.stale", error=repr(error), failures=self._failures, since=self._fresh_at)
            return False
        if self._failures:
            log.info("keyring.fresh", after_failures=self._failures)
        self._failures = 0
        self._fresh_at = self._clock()
        self._freshness.read(began, self._keyring.revision or 0)
        return True

    async def _load(self) -> None:
        since, changes = self._keyring.moment, None
        if since is not None:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                changes = await self._store.changes(since)
        if changes is None:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                self._keyring.load(await self._store.snapshot())
        else:
            self._keyring.apply(changes)
        touched = None if changes is None else len(changes.touched)
        log.info("keyring.loaded", revision=self._keyring.revision, keys=len(self._keyring), touched=touched)

    def _spawn(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="keyring-watch")
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            await self.poll()
            # As long as nobody is let in before the store was read, it is asked at the usual pace.
            patience = 1 if self._freshness.owed else min(2**self._failures, BACK_OFF_MOST)
            await self._pause(self._every_s * patience)

    async def _pause(self, seconds: float) -> None:
        """Sleep, or less if somebody wants a look now."""
        waits = {asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._wanted.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Only `close` may end the task: after any other end a new one takes over."""
        if self._closing or task is not self._task:
            return
        error = None if task.cancelled() else task.exception()
        self._failures += 1
        log.error("keyring.watch_died", error=repr(error), cancelled=task.cancelled())
        loop = task.get_loop()
        if not loop.is_closed():
            loop.call_later(self._every_s, self._respawn)

    def _respawn(self) -> None:
        if not self._closing:
            self._spawn()


def _principals(rows: Iterable[CredentialRow]) -> dict[bytes, Principal]:
    """By fingerprint. Keys that may do the same share what says so."""
    known: dict[tuple[object, ...], Rules] = {}
    found = {}
    for row in rows:
        what = (row.scopes, row.models, row.networks)
        if (rules := known.get(what)) is None:
            rules = known[what] = compile_rules(*what)
        expires_at_s = _NEVER if row.expires_at is None else row.expires_at / 1000
        found[row.hash] = Principal(row.tenant_id, row.tenant_name, row.key_id, row.zone, rules, expires_at_s)
    return found
