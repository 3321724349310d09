"""Every valid key in memory: checking one touches no disk, no network and no other task.

A key is looked up by its HMAC, which nobody without the pepper can steer: how long the look-up takes tells nothing
about any key that exists. The store stays the truth: `watch` polls its revision and loads a snapshot when it moved, so
that a revocation holds on every gateway in under a second.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

import msgspec
import structlog

from gateway.core.keys import well_formed
from gateway.store.rows import Snapshot
from shared.errors import AuthenticationError

log = structlog.get_logger("evenflow.keyring")

POLL_TIMEOUT_S = 5.0
BACK_OFF_MOST = 8
"""A failing poll is repeated after 1, 2, 4, then always 8 times the usual pause."""
STALE_AFTER = 4
"""Pauses without a good poll, after which the keys count as stale whatever the task thinks of itself."""


class Principal(msgspec.Struct, frozen=True):
    """Who a request is for. `zone` is the calendar that the tenant's budgets go by."""

    tenant_id: str
    tenant_name: str
    key_id: str
    zone: str = "UTC"


class _Entry(msgspec.Struct, frozen=True):
    principal: Principal
    expires_at_s: float


class Source(Protocol):
    """What `watch` needs of a store."""

    async def revision(self) -> int:
        """A number that differs once something changed."""
        ...

    async def snapshot(self) -> Snapshot:
        """All valid keys, as of one moment."""
        ...


class Keyring:
    """Keys by fingerprint. `clock` gives seconds since 1970, as `time.time`; keys expire by it."""

    def __init__(self, pepper: bytes, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The hash state after the pepper: copied for each key, it spares half of the work.
        self._keyed = hmac.new(pepper, digestmod="sha256")
        self._entries: dict[bytes, _Entry] = {}
        self.revision: int | None = None
        """Of the snapshot that was loaded last; `None` before the first."""
        self.on_load: Callable[[Snapshot], None] = lambda _snapshot: None
        """Called with each snapshot: what else is kept of it moves together with the keys."""

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, snapshot: Snapshot) -> None:
        """Take over a snapshot whole: checks see all of the old one or all of the new one."""
        entries = {}
        for row in snapshot.credentials:
            principal = Principal(row.tenant_id, row.tenant_name, row.key_id, row.zone)
            expires_at_s = float("inf") if row.expires_at is None else row.expires_at / 1000
            entries[row.hash] = _Entry(principal, expires_at_s)
        self._entries = entries
        self.revision = snapshot.revision
        self.on_load(snapshot)

    def check(self, presented: str) -> Principal:
        """The principal of a key.

        Raises:
            AuthenticationError: Malformed, unknown, revoked or expired: the same message for each.
        """
        if well_formed(presented):
            keyed = self._keyed.copy()
            keyed.update(presented.encode("ascii"))
            entry = self._entries.get(keyed.digest())
            if entry is not None and self._clock() < entry.expires_at_s:
                return entry.principal
        raise AuthenticationError

    def watch(
        self,
        store: Source,
        every_s: float = 0.5,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> "KeyringWatch":
        """Keep up with `store`, from `start` to `close` of what is returned, or within `async with`."""
        return KeyringWatch(self, store, every_s, clock=self._clock, sleep=sleep)


class KeyringWatch:
    """The task that keeps a keyring up to date. It outlives every error of the store, and its own death."""

    def __init__(
        self,
        keyring: Keyring,
        store: Source,
        every_s: float,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._keyring = keyring
        self._store = store
        self._every_s = every_s
        self._clock = clock
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None
        self._closing = False
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

    async def poll(self) -> bool:
        """Look once, and load what changed. False, and logged, if the store did not answer."""
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                if await self._store.revision() != self._keyring.revision:
                    self._keyring.load(await self._store.snapshot())
                    log.info("keyring.loaded", revision=self._keyring.revision, keys=len(self._keyring))
        except Exception as error:  # noqa: BLE001  # whatever it is, the keys in memory go on serving
            self._failures += 1
            log.warning("keyring.stale", error=repr(error), failures=self._failures, since=self._fresh_at)
            return False
        if self._failures:
            log.info("keyring.fresh", after_failures=self._failures)
        self._failures = 0
        self._fresh_at = self._clock()
        return True

    def _spawn(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="keyring-watch")
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        while True:
            await self.poll()
            await self._sleep(self._every_s * min(2**self._failures, BACK_OFF_MOST))

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
