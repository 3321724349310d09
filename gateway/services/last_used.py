"""When each key was last used: noted in memory, written beside the requests, a key once a minute at most.

A gateway that is killed loses its last minute. What cannot be written is written with the next batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final

import structlog

from shared.errors import StoreError

log = structlog.get_logger("last_used")

EVERY_S: Final = 60.0
BATCH: Final = 500
"""Keys of one transaction: others that write wait no longer than that takes."""
MOST: Final = 200_000
"""Keys that are kept in mind while nothing can be written."""


class LastUsed:
    """`write` takes key ids and milliseconds since 1970; `clock` is seconds since 1970."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def used(self, key_id: str) -> None:
        """A request was let in with this key."""
        if len(self._seen) < MOST or key_id in self._seen:
            self._seen[key_id] = int(self._clock() * 1000)

    async def run(
        self,
        write: Callable[[Mapping[str, int]], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Write once a minute, until cancelled."""
        while True:
            await sleep(EVERY_S)
            await self.flush(write)

    async def flush(self, write: Callable[[Mapping[str, int]], Awaitable[None]]) -> None:
        """Write what there is. What fails stays for the next time, unless the key was used again since."""
        seen, self._seen = self._seen, {}
        rest = iter(sorted(seen.items()))
        while batch := dict(islice(rest, BATCH)):
            try:
                await write(batch)
            except StoreError as error:
                self._seen = {**batch, **dict(rest), **self._seen}
                log.warning("last_used_waits", keys=len(self._seen), error=str(error))
                return
