"""`/admin/v1`: every route of the operators' API, behind one guard."""

from typing import Any

from litestar import Request, Router
from litestar.datastructures import ResponseHeader
from litestar.di import Provide

from gateway.admin.audit import audit_routes
from gateway.admin.fleet import fleet_routes
from gateway.admin.idempotency import Once
from gateway.admin.keys import key_routes
from gateway.admin.limits import quota_routes
from gateway.admin.people import people_routes
from gateway.admin.problems import HEADERS
from gateway.admin.reference import PREFIX
from gateway.admin.session import session_routes
from gateway.admin.sessions import Access, provide_identity
from gateway.admin.tenants import tenant_routes
from gateway.admin.usage import usage_routes
from gateway.context import House
from gateway.store.store import Store
from shared.errors import InvalidRequestError

MOST_BODY_BYTES = 64 * 1024


def admin_router(house: House, store: Store, access: Access) -> Router:
    """The whole API."""
    once = Once(store)
    return Router(
        PREFIX,
        route_handlers=[
            *session_routes(access),
            *tenant_routes(store, once),
            *key_routes(store, once),
            *quota_routes(store),
            *fleet_routes(house),
            *usage_routes(store),
            *audit_routes(store),
            *people_routes(store, once),
        ],
        guards=[access.guard],
        before_request=_only_text,
        dependencies={"identity": Provide(provide_identity, sync_to_thread=False)},
        request_max_body_size=MOST_BODY_BYTES,
        response_headers=[ResponseHeader(name=name, value=value) for name, value in HEADERS.items()],
        security=[{"session": []}, {"token": []}],
    )


async def _only_text(request: Request[Any, Any, Any]) -> None:
    """No address has a NUL in it: no database takes one as text."""
    if "\0" in request.scope["path"] or b"%00" in request.scope["query_string"]:
        raise InvalidRequestError("The address has a NUL in it.")
