"""Passwords of people: Argon2id, in threads of their own, so many at a time and so many waiting.

One hash takes 64 MiB and a sixth of a second of a core: enough to make guesses dear, and the reason for both bounds.
"""

import asyncio
import base64
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from shared.errors import InvalidRecordError, UnavailableError

T = TypeVar("T")

LEAST: Final = 12
MOST_BYTES: Final = 1024
AT_ONCE: Final = 2
WAITING: Final = 16
HASHER: Final = PasswordHasher(time_cost=3, memory_cost=65_536, parallelism=1, hash_len=32, salt_len=16, type=Type.ID)
"""RFC 9106's choice for machines without memory to spare, on one core."""


class Passwords:
    """Hashes and checks. Every method raises UnavailableError when too many wait already."""

    def __init__(self, hasher: PasswordHasher = HASHER, *, at_once: int = AT_ONCE, waiting: int = WAITING) -> None:
        self._hasher = hasher
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="argon2")
        self._most = at_once + waiting
        self._held = 0
        self._nobody = _unmatched(hasher)

    async def hash(self, password: str) -> str:
        """The hash in its standard text form. Raises InvalidRecordError for one that is too short or too long."""
        check_password(password)
        return await self._run(lambda: self._hasher.hash(password))

    async def verify(self, kept: str | None, password: str) -> bool:
        """Whether it is the password of that hash. `None`, for nobody's, is false and takes as long."""
        return await self._run(lambda: self._matches(self._nobody if kept is None else kept, password))

    def outdated(self, kept: str) -> bool:
        """Whether that hash was made with other parameters than are used now."""
        return self._hasher.check_needs_rehash(kept)

    def close(self) -> None:
        """Let the threads go once they are done."""
        self._threads.shutdown(wait=False)

    def _matches(self, kept: str, password: str) -> bool:
        try:
            return self._hasher.verify(kept, password[: MOST_BYTES + 1])
        except (VerificationError, InvalidHashError, UnicodeEncodeError):
            return False

    async def _run(self, work: Callable[[], T]) -> T:
        if self._held >= self._most:
            raise UnavailableError("Too many passwords are being checked.", retry_after=1, retryable=True)
        self._held += 1
        # Counted until the thread is done, however long the caller waits for it.
        done = self._threads.submit(work)
        loop = asyncio.get_running_loop()
        done.add_done_callback(lambda _: _safely(loop, self._release))
        return await asyncio.wrap_future(done)

    def _release(self) -> None:
        self._held -= 1


def _safely(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


def check_password(password: str) -> None:
    """Raise InvalidRecordError unless it may be somebody's password. The message does not repeat it."""
    try:
        size = len(password.encode())
    except UnicodeEncodeError:
        raise InvalidRecordError("a password must be text") from None
    if len(password) < LEAST or size > MOST_BYTES:
        raise InvalidRecordError(f"a password has at least {LEAST} characters and at most {MOST_BYTES} bytes")


def _unmatched(hasher: PasswordHasher) -> str:
    """A hash of no password, which costs as much to check as any."""
    parameters = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (hasher.salt_len, hasher.hash_len)
    )
    made = f"$argon2id$v=19${parameters}${salt}${digest}"
    extract_parameters(made)
    return made
