"""Idempotency-Key: a creation that names itself happens once, however often it is sent, to whichever gateway.

Its answer is kept for a day, sealed: it may hold a key that is shown only once. Errors are not kept; nothing was made,
and the next try counts.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from litestar import Request, Response
from litestar.params import HeaderParameter

from gateway.admin.problems import RepeatedError, UnderWayError
from gateway.admin.sessions import Identity
from gateway.store.store import Store
from shared.errors import StoreError

T = TypeVar("T")
Asked = Request[Any, Any, Any]

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        required=False,
        min_length=1,
        max_length=255,
        description="Any text of the caller's own. The same request with the same key makes nothing more, for a day.",
    ),
]
WAIT_S: Final = 10.0
_POLL_S: Final = 0.05
_NONCE_BYTES: Final = 12
_PURPOSE: Final = b"evenflow: answers that are kept for their repetition"


class Made(msgspec.Struct, Generic[T], frozen=True):
    """What was made, as it is answered with 201."""

    body: T
    headers: dict[str, str]


class Once:
    """Creations over one store, by one identity each."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seal = AESGCM(hmac.digest(store.pepper, _PURPOSE, "sha256"))

    async def __call__(
        self, request: Asked, who: Identity, key: str | None, kind: type[T], make: Callable[[], Awaitable[Made[T]]]
    ) -> Response[T]:
        """`make` it, or answer what the first of these requests was answered.

        Raises:
            RepeatedError: The key has named another request.
            UnderWayError: The first one is still at it after 10 s.
        """
        if key is None:
            return _answer(await make())
        name, asked = f"{who.kind}:{who.id}", await _digest(request)
        kept = await self._taken(name, key, asked)
        if kept is not None:
            made: Made[T] = self._open(kept, kind, f"{name}\0{key}")
            return _answer(Made(made.body, made.headers | {"idempotency-replayed": "true"}))
        try:
            made = await make()
        except BaseException:
            await asyncio.shield(self._store.repeats.abandon(name, key))
            raise
        await self._store.repeats.finish(name, key, status=201, headers="", body=self._close(made, f"{name}\0{key}"))
        return _answer(made)

    async def _taken(self, name: str, key: str, asked: bytes) -> bytes | None:
        """The sealed answer of the first of these requests; `None` if this is the first."""
        until = asyncio.get_running_loop().time() + WAIT_S
        while True:
            kept = await self._store.repeats.begin(name, key, asked)
            if kept is None:
                return None
            if not kept.under_way and hmac.compare_digest(kept.request, asked):
                return kept.body
            if not hmac.compare_digest(kept.request, asked):
                raise RepeatedError("This Idempotency-Key has named another request.")
            if asyncio.get_running_loop().time() >= until:
                raise UnderWayError("The first request of this Idempotency-Key is still under way.", retry_after=1)
            await asyncio.sleep(_POLL_S)

    def _close(self, made: Made[T], bound_to: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._seal.encrypt(nonce, msgspec.json.encode(made), bound_to.encode())

    def _open(self, sealed: bytes, kind: type[T], bound_to: str) -> Made[T]:
        try:
            plain = self._seal.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound_to.encode())
        except InvalidTag:
            raise StoreError("an answer that was kept for its repetition is not as it was written") from None
        return msgspec.json.decode(plain, type=Made[kind])  # type: ignore[valid-type]


async def _digest(request: Asked) -> bytes:
    """What was asked: method, path, query and body."""
    whole = hashlib.sha256()
    for part in (request.method, request.scope["path"], request.scope["query_string"].decode("latin-1")):
        whole.update(part.encode() + b"\0")
    whole.update(await request.body())
    return whole.digest()


def _answer(made: Made[T]) -> Response[T]:
    return Response(made.body, status_code=201, headers=made.headers)
