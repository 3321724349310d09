"""`/admin/v1/admins` and `/admin/v1/tokens`: who may use this API. For people alone: no token makes another."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from gateway.admin.conditional import IfMatch, etag, expected
from gateway.admin.idempotency import IdempotencyKey, Made, Once
from gateway.admin.lists import After, Limit, Listing, listing, place
from gateway.admin.problems import CHANGE, CREATE, READ, documented
from gateway.admin.sessions import Who, needs
from gateway.core.admin_tokens import Scope
from gateway.store.admins import AdminRow
from gateway.store.store import Store
from gateway.store.tokens import TokenRow
from shared.errors import ConflictError

Asked = Request[Any, Any, Any]
AdminPath = Annotated[str, PathParameter(max_length=63, description="The admin's name or id.")]
TokenPath = Annotated[str, PathParameter(max_length=63, description="The token's name or id.")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Password = Annotated[str, Meta(min_length=12, max_length=1024)]


class NewAdmin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An admin to be."""

    name: Name
    password: Password


class NewPassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The password to come."""

    password: Password


class AdminPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change."""

    disabled: bool


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be: `expires_at` in ms since 1970, null for never."""

    name: Name
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=16)]
    expires_at: Annotated[int, Meta(ge=0, le=253_402_300_799_999)] | None = None


class MadeToken(msgspec.Struct, frozen=True):
    """A token and its `secret`, which is not kept: it is shown only here."""

    token: TokenRow
    secret: str


def people_routes(store: Store, once: Once) -> list[HTTPRouteHandler]:
    """Those of admins and those of tokens."""
    return [*_admin_routes(store, once), *_token_routes(store, once)]


def _admin_routes(store: Store, once: Once) -> list[HTTPRouteHandler]:
    @get("/admins", opt=needs("people"), responses=documented(*READ), tags=["admins"])
    async def list_admins(limit: Limit = 50, after: After = None) -> Listing[AdminRow]:
        """Admins, by name."""
        return listing(await store.pages.admins(after=place(after, str), most=limit))

    @post("/admins", opt=needs("people"), responses=documented(*CREATE), tags=["admins"])
    async def create_admin(
        request: Asked, identity: Who, data: JSONBody[NewAdmin], idempotency_key: IdempotencyKey = None
    ) -> Response[AdminRow]:
        """Add an admin."""

        async def make() -> Made[AdminRow]:
            row = await store.admins.create(data.name, data.password, by=identity.actor)
            return Made(row, etag(row.version) | {"location": f"/admin/v1/admins/{row.id}"})

        return await once(request, identity, idempotency_key, AdminRow, make)

    @get("/admins/{admin:str}", opt=needs("people"), responses=documented(*READ, 404), tags=["admins"])
    async def get_admin(admin: AdminPath) -> Response[AdminRow]:
        """One admin."""
        row = await store.admins.one(admin)
        return Response(row, headers=etag(row.version))

    @patch("/admins/{admin:str}", opt=needs("people"), responses=documented(*CHANGE), tags=["admins"])
    async def change_admin(
        admin: AdminPath, identity: Who, data: JSONBody[AdminPatch], if_match: IfMatch = None
    ) -> Response[AdminRow]:
        """Shut an admin out, or let them in again. Nobody shuts themself out: somebody always stays."""
        version = expected(if_match)
        if data.disabled and (await store.admins.one(admin)).id == identity.id:
            raise ConflictError("you cannot shut yourself out")
        row = await store.admins.set_disabled(admin, disabled=data.disabled, by=identity.actor, version=version)
        return Response(row, headers=etag(row.version))

    @put("/admins/{admin:str}/password", opt=needs("people"), responses=documented(*CHANGE), tags=["admins"])
    async def set_password(
        admin: AdminPath, identity: Who, data: JSONBody[NewPassword], if_match: IfMatch = None
    ) -> Response[AdminRow]:
        """Give an admin another password. Every session of theirs ends, the caller's own too."""
        row = await store.admins.set_password(admin, data.password, by=identity.actor, version=expected(if_match))
        return Response(row, headers=etag(row.version))

    return [list_admins, create_admin, get_admin, change_admin, set_password]


def _token_routes(store: Store, once: Once) -> list[HTTPRouteHandler]:
    @get("/tokens", opt=needs("people"), responses=documented(*READ), tags=["tokens"])
    async def list_tokens(limit: Limit = 50, after: After = None) -> Listing[TokenRow]:
        """Tokens, oldest first, revoked ones included."""
        return listing(await store.pages.tokens(after=place(after, int, str), most=limit))

    @post("/tokens", opt=needs("people"), responses=documented(*CREATE), tags=["tokens"])
    async def create_token(
        request: Asked, identity: Who, data: JSONBody[NewToken], idempotency_key: IdempotencyKey = None
    ) -> Response[MadeToken]:
        """Make a token for a program; the answer has its secret, this once."""

        async def make() -> Made[MadeToken]:
            row, secret = await store.tokens.create(
                data.name, data.scopes, expires_at=data.expires_at, by=identity.actor
            )
            headers = etag(row.version) | {"location": f"/admin/v1/tokens/{row.id}"}
            return Made(MadeToken(row, secret), headers)

        return await once(request, identity, idempotency_key, MadeToken, make)

    @get("/tokens/{token:str}", opt=needs("people"), responses=documented(*READ, 404), tags=["tokens"])
    async def get_token(token: TokenPath) -> Response[TokenRow]:
        """One token."""
        row = await store.tokens.one(token)
        return Response(row, headers=etag(row.version))

    @delete("/tokens/{token:str}", status_code=200, opt=needs("people"), responses=documented(*CHANGE), tags=["tokens"])
    async def revoke_token(token: TokenPath, identity: Who, if_match: IfMatch = None) -> Response[TokenRow]:
        """Revoke a token: the next request with it is refused."""
        row = await store.tokens.revoke(token, by=identity.actor, version=expected(if_match))
        return Response(row, headers=etag(row.version))

    return [list_tokens, create_token, get_token, revoke_token]
