"""`/admin/v1/session`: log in, see who one is, log out."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from gateway.admin.problems import documented
from gateway.admin.sessions import Access, Identity, Who, needs

Asked = Request[Any, Any, Any]


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who, and their password."""

    name: Annotated[str, msgspec.Meta(max_length=63)]
    password: Annotated[str, msgspec.Meta(max_length=1024)]


class Session(msgspec.Struct, frozen=True):
    """Who asks. `csrf` goes into the header `x-csrf-token` of every change; a token has none, but scopes."""

    kind: str
    id: str
    name: str
    scopes: tuple[str, ...]
    csrf: str
    expires_at: int | None


def session_routes(access: Access) -> list[HTTPRouteHandler]:
    """Three routes."""

    @post(
        "/session",
        opt=needs("nobody"),
        responses=documented(400, 401, 403, 413, 429, 503),
        security=[],
        tags=["session"],
    )
    async def login(request: Asked, data: JSONBody[Login]) -> Response[Session]:
        """Log in: the cookie in the answer is the session."""
        identity, cookie = await access.login(request, data.name, data.password)
        return Response(_shown(identity), status_code=201, cookies=[cookie])

    @get("/session", opt=needs("anyone"), responses=documented(400, 401, 503), tags=["session"])
    async def whoami(identity: Who) -> Session:
        """Who one is."""
        return _shown(identity)

    @delete("/session", opt=needs("people"), responses=documented(400, 401, 403, 503), tags=["session"])
    async def logout(request: Asked, identity: Who) -> Response[None]:
        """Log out: the cookie opens nothing any more."""
        cookie = await access.logout(request, identity)
        return Response(None, status_code=204, cookies=[cookie])

    return [login, whoami, logout]


def _shown(identity: Identity) -> Session:
    expires_at = None if identity.session is None else identity.session.row.expires_at
    return Session(identity.kind, identity.id, identity.name, identity.scopes, identity.csrf, expires_at)
