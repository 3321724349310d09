"""The API's own description, and the page to read it, which talks to nobody but us."""

import hashlib
import re

from gateway.admin.reference import STATIC


async def test_the_description_is_open_and_whole(desk):
    async with desk.client() as client:
        described = (await client.get("/admin/v1/openapi.json")).json()
    routes = {
        (re.sub(r":str}", "}", route.path), method.lower())
        for route in desk.app.routes
        for method in getattr(route, "methods", ())
        if route.path.startswith("/admin/v1/") and method != "OPTIONS"
    }
    own = {("/admin/v1/openapi.json", "get"), ("/admin/v1/docs", "get")}
    assert {(path, method) for path, methods in described["paths"].items() for method in methods} == routes - own
    assert set(described["components"]["securitySchemes"]) == {"session", "token"}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], path
            assert operation.get("description"), (method, path)


async def test_the_page_loads_from_here_alone(desk):
    async with desk.client() as client:
        page = await client.get("/admin/v1/docs")
        sources = re.findall(r'(?:src|href|data-url)="([^"]*)"', page.text)
        assert sources
        assert all(source.startswith("/admin/") for source in sources)
        policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
        assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
        assert "http" not in page.headers["content-security-policy"]
        script = await client.get("/admin/static/scalar.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.content == (STATIC / "scalar.js").read_bytes()


def test_what_is_vendored_is_what_its_licence_says():
    licence = (STATIC / "scalar.LICENSE").read_text()
    assert hashlib.sha256((STATIC / "scalar.js").read_bytes()).hexdigest() in licence
    assert "MIT License" in licence
