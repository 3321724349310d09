"""All pages behind one guard."""

from litestar import Router
from litestar.datastructures import ResponseHeader

from gateway.admin.sessions import Access
from gateway.context import House
from gateway.dashboard.assets import asset_route
from gateway.dashboard.audit import audit_routes
from gateway.dashboard.door import HEADERS, guard, login_routes, refused
from gateway.dashboard.keys import key_routes
from gateway.dashboard.live import Live
from gateway.dashboard.overview import overview_routes
from gateway.dashboard.quotas import quota_routes
from gateway.dashboard.tenants import TenantsRoom
from gateway.dashboard.usage import usage_routes
from gateway.store.store import Store

MOST_FORM_BYTES = 64 * 1024


def dashboard_routes(house: House, store: Store, access: Access) -> Router:
    """The dashboard, at the root of the operators' door. `access` is the one that the API has: it slows guesses."""
    tenants = TenantsRoom(house, store)
    return Router(
        "/",
        route_handlers=[
            asset_route(),
            *login_routes(access, store),
            *overview_routes(house, store),
            *tenants.routes(),
            *key_routes(house, store, tenants),
            *quota_routes(house, store),
            *usage_routes(store),
            *audit_routes(store),
            *Live(house, store, tenants).routes(),
        ],
        before_request=guard(access),
        exception_handlers={Exception: refused},
        request_max_body_size=MOST_FORM_BYTES,
        response_headers=[ResponseHeader(name=name, value=value) for name, value in HEADERS.items()],
    )
