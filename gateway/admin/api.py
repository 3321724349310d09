"""`/admin/v1`: every route of the operators' API, behind one guard."""

from litestar import Router
from litestar.datastructures import ResponseHeader
from litestar.di import Provide

from gateway.admin.session import session_routes
from gateway.admin.sessions import Access, provide_identity

PREFIX = "/admin/v1"
MOST_BODY_BYTES = 64 * 1024
HEADERS = [
    ResponseHeader(name="cache-control", value="no-store", documentation_only=False),
    ResponseHeader(name="x-content-type-options", value="nosniff"),
    ResponseHeader(name="referrer-policy", value="no-referrer"),
    ResponseHeader(name="content-security-policy", value="default-src 'none'; frame-ancestors 'none'"),
]


def admin_router(access: Access) -> Router:
    """The whole API."""
    return Router(
        PREFIX,
        route_handlers=[*session_routes(access)],
        guards=[access.guard],
        dependencies={"identity": Provide(provide_identity, sync_to_thread=False)},
        request_max_body_size=MOST_BODY_BYTES,
        response_headers=HEADERS,
    )
