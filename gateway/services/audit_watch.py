"""The head of the audit log, into this gateway's own log whenever it moves, whoever moved it.

The chain of seals shows what was changed or taken out of the middle; what was cut off its end shows only against
something that is kept elsewhere. Logs are.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from gateway.store.audit import Head
from shared.errors import StoreError

EVERY_S: Final = 5.0

log = structlog.get_logger("evenflow.audit")


class Heads(Protocol):
    """What is watched."""

    async def head(self) -> Head:
        """The last entry's number and seal. Raises StoreError."""
        ...


class AuditWatch:
    """Looks every 5 s. A store that does not answer is logged once, and asked again."""

    def __init__(self, heads: Heads, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._heads = heads
        self._sleep = sleep
        self._seen: Head | None = None
        self._blind = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await self._sleep(EVERY_S)

    async def look(self) -> None:
        """Look once."""
        try:
            head = await self._heads.head()
        except StoreError as error:
            if not self._blind:
                log.warning("audit_unread", error=str(error))
            self._blind = True
            return
        self._blind = False
        if head == self._seen:
            return
        if self._seen is not None and head.sequence <= self._seen.sequence:
            log.error("audit_cut", was=_told(self._seen), now=_told(head))
        else:
            log.info("audit_head", head=_told(head))
        self._seen = head


def _told(head: Head) -> str:
    """As `evenflow audit verify --head` takes it."""
    return f"{head.sequence}:{head.seal}"
