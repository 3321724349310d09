"""Who uses the admin plane: people with a session cookie, programs with a token; nobody else gets past `Access.guard`.

A route says what it `needs`; one that says nothing serves nobody: none is open by oversight. What a cookie allows,
a forged request from another site must not: unsafe methods need the session's CSRF token, and must not say that they
come from elsewhere.
"""

import hmac
import math
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
import structlog
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler

from gateway.core.admin_tokens import Scope
from gateway.core.logins import Logins
from gateway.store.rows import Actor
from gateway.store.sessions import OpenSession
from gateway.store.store import Store
from shared.errors import AuthenticationError, PermissionDeniedError, RateLimitError, UnknownRecordError
from shared.settings import AdminSettings

Asking = ASGIConnection[Any, Any, Any, Any]
Needs = Scope | Literal["people", "anyone", "nobody"]

COOKIE: Final = "evenflow_session"
SECURE_COOKIE: Final = "__Host-evenflow_session"
"""Browsers take a cookie of this kind of name over TLS only, and for this very host only."""
CSRF_HEADER: Final = "x-csrf-token"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NOT_FOR_READERS: Final = frozenset({"audit", "people"})
_WRONG_PASSWORD: Final = "The name or the password is wrong."  # noqa: S105
_NO_CREDENTIALS: Final = "Log in, or send Authorization: Bearer with an admin token that is in force."
_IDENTITY: Final = "identity"

log = structlog.get_logger("evenflow.admin")


class Identity(msgspec.Struct, frozen=True):
    """Who asks. An admin, who may do everything, has the `csrf` token of the session; a token has its `scopes`."""

    kind: Literal["admin", "token"]
    id: str
    name: str
    scopes: tuple[Scope, ...]
    source: str
    csrf: str = ""
    session: OpenSession | None = None

    @property
    def actor(self) -> Actor:
        """The same for the audit log."""
        return Actor(self.kind, self.id, self.name, self.source)

    def may(self, needs: Needs, *, change: bool) -> bool:
        """Whether it may see, or `change`, what a route is about."""
        if self.kind == "admin" or needs == "anyone":
            return True
        return needs in self.scopes or (not change and "read" in self.scopes and needs not in _NOT_FOR_READERS)


Who = NamedDependency[Identity]
"""The type of a handler's argument `identity`: who asks."""


def needs(what: Needs) -> dict[str, Any]:
    """The `opt` of a route: the scope of its subject; or `people` alone, `anyone` known, `nobody` in particular."""
    return {"needs": what}


def provide_identity(request: Request[Any, Any, Any]) -> Identity:
    """Who asks: a dependency for handlers behind `Access.guard`."""
    identity = request.scope["state"].get(_IDENTITY)
    if not isinstance(identity, Identity):
        raise AuthenticationError(_NO_CREDENTIALS)
    return identity


class Access:
    """Logins, sessions and tokens over one store. `now` is a clock that never goes back, in seconds."""

    def __init__(self, store: Store, settings: AdminSettings, now: Callable[[], float]) -> None:
        self._store = store
        self._settings = settings
        self._now = now
        self._logins = Logins()

        async def guard(connection: Asking, handler: BaseRouteHandler) -> None:
            await self._check(connection, handler)

        self.guard = guard  # a function: the framework copies guards, deeply
        """For routers and routes: lets nobody past who may not. Raises as `identify` and `may` demand."""

    async def _check(self, connection: Asking, handler: BaseRouteHandler) -> None:
        """Let nobody past who may not.

        Raises:
            AuthenticationError: Nobody known asks.
            PermissionDeniedError: Their scopes do not cover it, or the request may be forged.
        """
        wanted: Needs = handler.opt["needs"]
        if wanted == "nobody":
            return
        identity = await self.identify(connection)
        if identity is None:
            raise AuthenticationError(_NO_CREDENTIALS)
        change = connection.scope.get("method") not in SAFE
        if not identity.may(wanted, change=change):
            what = "Only people may do that." if wanted == "people" else f"That needs a token with the scope {wanted}."
            raise PermissionDeniedError(what, code="scope")
        if change and identity.kind == "admin":
            check_same_site(connection)
            check_csrf(identity, connection.headers.get(CSRF_HEADER))
        connection.scope["state"][_IDENTITY] = identity

    async def identify(self, connection: Asking) -> Identity | None:
        """Who asks, by token or else by cookie; `None` for nobody, or for one that is not in force."""
        source = source_of(connection)
        presented = connection.headers.get("authorization")
        if presented is not None:
            scheme, _, secret = presented.partition(" ")
            token = await self._store.tokens.find(secret.strip()) if scheme.lower() == "bearer" else None
            return None if token is None else Identity("token", token.id, token.name, token.scopes, source)
        secret = connection.cookies.get(self._cookie_name(connection), "")
        idle_ms = int(self._settings.session_idle_s * 1000)
        session = await self._store.sessions.find(secret, idle_ms=idle_ms) if secret else None
        return None if session is None else _identity(session, source)

    async def login(self, connection: Asking, name: str, password: str) -> tuple[Identity, Cookie]:
        """Open a session.

        Raises:
            AuthenticationError: The name or the password is wrong: one message for both, after the same work.
            RateLimitError: Too many tries from there, or for that name.
            PermissionDeniedError: Another site's page asks.
        """
        check_same_site(connection)
        source = source_of(connection)
        wait_s = self._logins.begin(source, name, self._now())
        if wait_s > 0:
            log.warning("admin_login_slowed", source=source, wait_s=round(wait_s, 1))
            raise RateLimitError(
                f"Too many tries: the next one counts in {math.ceil(wait_s)} s.", code="logins", retry_after=wait_s
            )
        admin = await self._store.admins.verify(name, password)
        if admin is None:
            # Not the name: people type their password there.
            log.warning("admin_login_failed", source=source)
            raise AuthenticationError(_WRONG_PASSWORD)
        try:
            most_ms = int(self._settings.session_s * 1000)
            session, secret = await self._store.sessions.open(admin, source=source, most_ms=most_ms)
        except UnknownRecordError:
            raise AuthenticationError(_WRONG_PASSWORD) from None
        self._logins.succeeded(source, name)
        log.info("admin_login", admin=admin.name, source=source)
        return _identity(session, source), self._cookie(connection, secret, int(self._settings.session_s))

    async def logout(self, connection: Asking, identity: Identity) -> Cookie:
        """End the session of whoever asks, and the cookie with it."""
        if identity.session is not None:
            await self._store.sessions.close(identity.session, by=identity.actor)
        return self._cookie(connection, "", 0)

    def _cookie(self, connection: Asking, secret: str, max_age: int) -> Cookie:
        return Cookie(
            key=self._cookie_name(connection),
            value=secret,
            max_age=max_age,
            path="/",
            secure=self._is_secure(connection),
            httponly=True,
            samesite="strict",
        )

    def _cookie_name(self, connection: Asking) -> str:
        return SECURE_COOKIE if self._is_secure(connection) else COOKIE

    def _is_secure(self, connection: Asking) -> bool:
        return self._settings.offloaded or connection.scope["scheme"] == "https"


def check_same_site(connection: Asking) -> None:
    """Raise PermissionDeniedError if a browser says that a page of another origin asks. Programs say nothing."""
    site = connection.headers.get("sec-fetch-site")
    origin = connection.headers.get("origin")
    host = connection.headers.get("host", "")
    if site not in (None, "same-origin", "none") or (origin is not None and origin.partition("://")[2] != host):
        raise PermissionDeniedError("This request comes from another site.", code="cross_site")


def check_csrf(identity: Identity, presented: str | None) -> None:
    """Raise PermissionDeniedError unless that is the token of the session."""
    same = presented is not None and hmac.compare_digest(presented.encode(), identity.csrf.encode())
    if not same:
        raise PermissionDeniedError(f"Send the session's CSRF token as {CSRF_HEADER}.", code="csrf")


def source_of(connection: Asking) -> str:
    """The address that a request comes from."""
    client = connection.scope.get("client")
    return client[0][:64] if client else "unknown"


def _identity(session: OpenSession, source: str) -> Identity:
    return Identity("admin", session.admin_id, session.admin_name, (), source, session.csrf, session)
