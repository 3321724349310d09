"""The API's own description: OpenAPI at `/admin/v1/openapi.json`, and a page to read it, `/admin/v1/docs`.

Both are open: they say what is in this source. Everything that the page needs comes from here, and its policy lets it
talk to nobody else.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from litestar import Litestar, Response, Router, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.response import File

from gateway.admin.sessions import COOKIE

PREFIX: Final = "/admin/v1"
STATIC: Final = Path(__file__).with_name("static")
# The page's library writes its own style elements; scripts come from here alone.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: Final = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Evenflow admin API</title>
</head>
<body>
<noscript>The description itself is at <a href="/admin/v1/openapi.json">/admin/v1/openapi.json</a>.</noscript>
<script id="api-reference" data-url="/admin/v1/openapi.json" data-configuration='{"withDefaultFonts": false,
"telemetry": false, "hideClientButton": true, "showDeveloperTools": "never",
"agent": {"disabled": true}, "mcp": {"disabled": true}}'></script>
<script src="/admin/static/scalar.js"></script>
</body>
</html>
"""


def describe(router: Router) -> bytes:
    """An OpenAPI document of what the router has, as JSON."""
    config = OpenAPIConfig(
        title="Evenflow admin API",
        version=importlib.metadata.version("evenflow"),
        description="Tenants, keys, quotas, usage, fleet, and who changed what. Times are milliseconds since 1970; "
        "errors are `application/problem+json` (RFC 9457).",
        use_handler_docstrings=True,
        components=Components(
            security_schemes={
                "session": SecurityScheme(
                    type="apiKey",
                    name=COOKIE,
                    security_scheme_in="cookie",
                    description="What `POST /admin/v1/session` sets. Changes need the header `x-csrf-token` too.",
                ),
                "token": SecurityScheme(type="http", scheme="bearer", description="An admin token, `efa-...`."),
            }
        ),
    )
    # An app of its own that serves nobody: in the real one, the framework would add routes.
    schema = Litestar([router], openapi_config=config, logging_config=None).openapi_schema.to_schema()
    return msgspec.json.encode(schema)


def reference_routes(api: Callable[[], Router]) -> list[HTTPRouteHandler]:
    """The description of the `api`, made when it is first asked for; the page, and its script."""
    described = functools.cache(lambda: describe(api()))

    @get(f"{PREFIX}/openapi.json", include_in_schema=False)
    async def document() -> Response[bytes]:
        """The description."""
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        return Response(described(), media_type="application/json", headers=headers)

    @get(f"{PREFIX}/docs", include_in_schema=False)
    async def docs() -> Response[bytes]:
        """The page."""
        headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(_PAGE, media_type="text/html", headers=headers)

    @get("/admin/static/scalar.js", include_in_schema=False)
    async def script() -> File:
        """Its script, for ever the same under one release."""
        return File(
            path=STATIC / "scalar.js",
            filename="scalar.js",
            media_type="text/javascript",
            headers={"cache-control": "max-age=3600", "x-content-type-options": "nosniff"},
            content_disposition_type="inline",
        )

    return [document, docs, script]
