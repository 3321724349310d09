"""`/admin/v1/keys`: how tenants' programs show who they are."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.conditional import IfMatch, etag, expected
from gateway.admin.idempotency import IdempotencyKey, Made, Once
from gateway.admin.lists import After, Limit, Listing, listing, place
from gateway.admin.problems import CHANGE, CREATE, READ, documented
from gateway.admin.sessions import Who, needs
from gateway.core.keys import SCOPES
from gateway.store.rows import KeyRow
from gateway.store.store import Store

Asked = Request[Any, Any, Any]
Owner = Annotated[str, PathParameter(max_length=63, description="The tenant's name or id.")]
KeyPath = Annotated[str, PathParameter(max_length=36, description="The key's id.")]
Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999, description="Milliseconds since 1970, UTC.")]
Texts = Annotated[tuple[Annotated[str, Meta(max_length=255)], ...], Meta(min_length=1, max_length=100)]


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to be. `models` and `networks` of null allow all; a model's name may end with `*`."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    expires_at: Moment | None = None
    scopes: Texts = SCOPES
    models: Texts | None = None
    networks: Texts | None = None


class KeyPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; what is left out stays."""

    expires_at: Moment | UnsetType | None = UNSET
    scopes: Texts | UnsetType = UNSET
    models: Texts | UnsetType | None = UNSET
    networks: Texts | UnsetType | None = UNSET


class Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old key goes on, in seconds."""

    overlap_s: Annotated[int, Meta(ge=0, le=366 * 86_400)] = 86_400


class MadeKey(msgspec.Struct, frozen=True):
    """A key and its `secret`, which is not kept: it is shown only here."""

    key: KeyRow
    secret: str


def key_routes(store: Store, once: Once) -> list[HTTPRouteHandler]:
    """Seven routes."""

    @get("/keys", opt=needs("keys"), responses=documented(*READ), tags=["keys"])
    async def list_all_keys(limit: Limit = 50, after: After = None) -> Listing[KeyRow]:
        """Everybody's keys, oldest first, revoked ones included."""
        return listing(await store.pages.keys(None, after=place(after, int, str), most=limit))

    @get("/tenants/{tenant:str}/keys", opt=needs("keys"), responses=documented(*READ, 404), tags=["keys"])
    async def list_keys(tenant: Owner, limit: Limit = 50, after: After = None) -> Listing[KeyRow]:
        """A tenant's keys, oldest first, revoked ones included."""
        return listing(await store.pages.keys(tenant, after=place(after, int, str), most=limit))

    @post("/tenants/{tenant:str}/keys", opt=needs("keys"), responses=documented(*CREATE, 404), tags=["keys"])
    async def create_key(
        request: Asked, tenant: Owner, identity: Who, data: JSONBody[NewKey], idempotency_key: IdempotencyKey = None
    ) -> Response[MadeKey]:
        """Make a key for a tenant; the answer has its secret, this once."""

        async def make() -> Made[MadeKey]:
            row, secret = await store.keys.create(
                tenant,
                data.name,
                by=identity.actor,
                expires_at=data.expires_at,
                scopes=data.scopes,
                models=data.models,
                networks=data.networks,
            )
            return _made(row, secret)

        return await once(request, identity, idempotency_key, MadeKey, make)

    @get("/keys/{key:str}", opt=needs("keys"), responses=documented(*READ, 404), tags=["keys"])
    async def get_key(key: KeyPath) -> Response[KeyRow]:
        """One key."""
        row = await store.keys.one(key)
        return Response(row, headers=etag(row.version))

    @patch("/keys/{key:str}", opt=needs("keys"), responses=documented(*CHANGE), tags=["keys"])
    async def change_key(
        key: KeyPath, identity: Who, data: JSONBody[KeyPatch], if_match: IfMatch = None
    ) -> Response[KeyRow]:
        """Change what a key may do, or until when."""
        changes = msgspec.structs.asdict(data)
        row = await store.keys.update(key, by=identity.actor, version=expected(if_match), **changes)
        return Response(row, headers=etag(row.version))

    @post("/keys/{key:str}/rotate", opt=needs("keys"), responses=documented(*CREATE, 404), tags=["keys"])
    async def rotate_key(
        request: Asked, key: KeyPath, identity: Who, data: JSONBody[Rotation], idempotency_key: IdempotencyKey = None
    ) -> Response[MadeKey]:
        """Replace a key by another of the same name; for a while both work."""

        async def make() -> Made[MadeKey]:
            return _made(*await store.keys.rotate(key, data.overlap_s, by=identity.actor))

        return await once(request, identity, idempotency_key, MadeKey, make)

    @delete("/keys/{key:str}", status_code=200, opt=needs("keys"), responses=documented(*CHANGE), tags=["keys"])
    async def revoke_key(key: KeyPath, identity: Who, if_match: IfMatch = None) -> Response[KeyRow]:
        """Revoke a key: no gateway takes it after a second."""
        row = await store.keys.revoke(key, by=identity.actor, version=expected(if_match))
        return Response(row, headers=etag(row.version))

    return [list_all_keys, list_keys, create_key, get_key, change_key, rotate_key, revoke_key]


def _made(row: KeyRow, secret: str) -> Made[MadeKey]:
    return Made(MadeKey(row, secret), etag(row.version) | {"location": f"/admin/v1/keys/{row.id}"})
