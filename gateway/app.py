"""Composition root: a house becomes two Litestar applications, the tenants' door and the operators'."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from litestar import Litestar, Request, Response, Router
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.exceptions import NotFoundException as LitestarNotFound
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.template.config import TemplateConfig
from litestar.types import ControllerRouterHandler

from gateway.admin.api import admin_router
from gateway.admin.problems import refuse
from gateway.admin.reference import PREFIX, reference_routes
from gateway.admin.sessions import Access
from gateway.context import House
from gateway.dashboard.door import refused
from gateway.dashboard.pages import TEMPLATES
from gateway.dashboard.routes import dashboard_routes
from gateway.http import problems
from gateway.http.health import health_routes, metrics_route
from gateway.http.openai import openai_routes
from gateway.http.usage import usage_route
from gateway.steps.accept import request_id
from gateway.store.store import Store
from shared.errors import HttpError, InvalidRequestError, MethodNotAllowedError, NotFoundError

Refusing = Callable[[Request[Any, Any, Any], Exception], Response[Any]]

_LONGEST_PATH = 200

log = structlog.get_logger("http")


def tenant_app(house: House) -> Litestar:
    """OpenAI's routes, a tenant's own usage, and the probes."""
    gateway = house.settings.gateway
    probes = health_routes(house, gateway.health_path, gateway.ready_path)
    return _app([*openai_routes(house), usage_route(house), *probes])


def admin_app(house: House, store: Store) -> Litestar:
    """The operators' API and pages; metrics and probes, which need no login."""
    access = Access(store, house.settings.admin, time.monotonic)
    probes = [metrics_route(house), *health_routes(house, "/health", "/ready")]

    def api() -> Router:
        return admin_router(house, store, access)

    pages = dashboard_routes(house, store, access)
    return _app([api(), *reference_routes(api), *probes, pages], _refuse_operator, TEMPLATES)


def _app(
    routes: Sequence[ControllerRouterHandler],
    refusing: Refusing | None = None,
    templates: TemplateConfig[JinjaTemplateEngine] | None = None,
) -> Litestar:
    return Litestar(
        route_handlers=routes,
        template_config=templates,
        exception_handlers={Exception: refusing or _refuse},
        openapi_config=None,
        logging_config=None,
        debug=False,
    )


def _refuse_operator(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """What no route was found for: people get a page, programs a problem."""
    people = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(PREFIX)
    return (refused if people else refuse)(request, error)


def _refuse(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Everything that goes wrong outside a journey, in OpenAI's shape."""
    rid = request_id(request.headers.get("x-request-id"))
    translated = _translate(request, error)
    if not isinstance(translated, HttpError):
        log.error("request_failed", request_id=rid, path=request.url.path, exc_info=error)
    status, headers, body = problems.render(translated, rid)
    plain = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers
        if name not in (b"content-length", b"content-type")
    }
    return Response(body, status_code=status, headers=plain, media_type="application/json")


def _translate(request: Request[Any, Any, Any], error: Exception) -> Exception:
    match error:
        case MethodNotAllowedException():
            allow = (error.headers or {}).get("allow", "")
            return MethodNotAllowedError(
                f"{request.method} is not allowed here.", allow=tuple(m.strip() for m in allow.split(",") if m.strip())
            )
        case LitestarNotFound():
            path = request.url.path[:_LONGEST_PATH]
            return NotFoundError(f"Unknown request URL: {request.method} {path}.", code="unknown_url")
        case HTTPException() if error.status_code < 500:  # noqa: PLR2004
            return InvalidRequestError(error.detail)
        case _:
            return error
