"""What a tenant used, for itself to see: however often it asks, the store is asked rarely."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from gateway.store.usage_report import Page
from shared.errors import StoreError, UnavailableError

FRESH_S: Final = 5.0
"""How long an answer of the store is good for."""
DOWN_S: Final = 2.0
"""How long nobody asks a store again that did not answer."""
PATIENCE_S: Final = 3.0
TENANTS: Final = 1024
"""Answers kept."""
AT_ONCE: Final = 2
"""Questions to the store at once: it has more to do."""
GROUPS: Final = 1000


class Sums(Protocol):
    """What is needed of the table of usage."""

    async def own(self, tenant_id: str, first: int, most: int) -> tuple[Page, Page]:
        """Sums by day, and by day and model, from the day `first` on, the latest first."""
        ...


class _Answer(msgspec.Struct, frozen=True):
    first: int
    until: float
    pages: tuple[Page, Page]


class OwnUsage:
    """Answers by tenant. `clock` is in seconds and never runs backwards."""

    def __init__(self, table: Sums, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        self._answers: dict[str, _Answer] = {}
        self._asking: dict[tuple[str, int], asyncio.Task[tuple[Page, Page]]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._down_until = float("-inf")

    async def of(self, tenant_id: str, first: int) -> tuple[Page, Page]:
        """Sums by day, and by day and model, from the day `first` on, at most 5 s old.

        Raises:
            UnavailableError: The store does not answer.
        """
        known = self._answers.get(tenant_id)
        if known is not None and known.first == first and self._clock() < known.until:
            return known.pages
        if self._clock() < self._down_until:
            raise _unavailable()
        task = self._asking.get((tenant_id, first))
        if task is None:  # all who ask meanwhile get the same answer, and whoever leaves takes nothing from the others
            task = self._asking[tenant_id, first] = asyncio.create_task(self._ask(tenant_id, first), name="own usage")
            task.add_done_callback(lambda done: self._done((tenant_id, first), done))
        await asyncio.wait({task}, timeout=PATIENCE_S)
        if not task.done():
            # It ends by itself: a question to a database that hangs cannot be taken back at once.
            self._down_until = self._clock() + DOWN_S
            raise _unavailable()
        return task.result()

    async def _ask(self, tenant_id: str, first: int) -> tuple[Page, Page]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._places.acquire()
            try:
                pages = await self._table.own(tenant_id, first, GROUPS)
            finally:
                self._places.release()
        except (StoreError, TimeoutError) as error:
            self._down_until = self._clock() + DOWN_S
            raise _unavailable() from error
        self._answers.pop(tenant_id, None)
        self._answers[tenant_id] = _Answer(first, self._clock() + FRESH_S, pages)
        if len(self._answers) > TENANTS:
            del self._answers[next(iter(self._answers))]
        return pages

    def _done(self, question: tuple[str, int], task: asyncio.Task[tuple[Page, Page]]) -> None:
        del self._asking[question]
        if not task.cancelled():
            task.exception()  # is told to who waits; nobody may be there any more


def _unavailable() -> UnavailableError:
    return UnavailableError("Usage cannot be read at the moment.", code="usage_unavailable", retry_after=DOWN_S)
