"""Who gets to see the pages: everything but the login needs a session, and every change a token against forgery.

It is the same session as the operators' API has, opened here by a form. A page that is asked for without one leads to
the login and from there back; whatever goes wrong is a page that says so.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote, urlsplit

from litestar import Response, get, post
from litestar.datastructures import FormMultiDict
from litestar.handlers import HTTPRouteHandler
from litestar.response import Redirect, Template

from gateway.admin.problems import refuse
from gateway.admin.sessions import CSRF_HEADER, SAFE, Access, check_csrf, check_same_site
from gateway.dashboard.pages import Asked, page, remember, who
from gateway.store.store import Store
from shared.errors import AuthenticationError, HttpError, InvalidRequestError, MediaTypeError, RateLimitError

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer", browsers would send forms as from nowhere
    "cross-origin-opener-policy": "same-origin",
}
_FORM: Final = "application/x-www-form-urlencoded"
_LONGEST_NEXT: Final = 1000
_SEE_OTHER: Final = 303

Before = Callable[[Asked], Awaitable[Response[Any] | None]]


def guard(access: Access) -> Before:
    """For the router: runs before each of its routes, but for those that are `open` on purpose."""

    async def before(request: Asked) -> Response[Any] | None:
        if "\0" in request.scope["path"] or b"%00" in request.scope["query_string"]:
            raise InvalidRequestError("The address has a NUL in it.")
        if request.method not in SAFE:
            check_same_site(request)
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
                raise MediaTypeError(f"Send a form, as {_FORM}.")
        if request.route_handler.opt.get("open"):
            return None
        identity = await access.identify(request)
        if identity is None or identity.kind != "admin":
            return to_login(request)
        if request.method not in SAFE:
            check_csrf(identity, field(await form_of(request), "csrf") or request.headers.get(CSRF_HEADER))
        remember(request, identity)
        return None

    return before


async def form_of(request: Asked) -> FormMultiDict:
    """The form that was sent. Raises InvalidRequestError for one that is none."""
    form = await request.form()
    if any(not isinstance(value, str) or "\0" in value for value in form.values()):
        raise InvalidRequestError("The form has a NUL, or a file, in it.")
    return form


def field(form: FormMultiDict, name: str, most: int = 4096) -> str:
    """One field, without the space around it; empty if it is not there. Raises InvalidRequestError past `most`."""
    value = str(form.get(name, "")).strip()
    if len(value) > most:
        raise InvalidRequestError(f"{name} is longer than {most} characters.", param=name)
    return value


def to_login(request: Asked) -> Response[Any]:
    """The way to the login, and from there back; streams and scripts are told with a status."""
    if "text/event-stream" in request.headers.get("accept", "") or request.url.path.startswith("/live"):
        return Response("Log in.", status_code=401, media_type="text/plain", headers=HEADERS)
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    back = asked if request.method in SAFE and len(asked) <= _LONGEST_NEXT else "/"
    target = f"/login?next={quote(back, safe='')}"
    if request.headers.get("hx-request"):
        return Response("", status_code=200, headers=HEADERS | {"hx-redirect": target}, media_type="text/plain")
    return see_other(target)


def see_other(target: str, **options: Any) -> Response[Any]:
    """Look there next."""
    return Redirect(target, status_code=_SEE_OTHER, headers=HEADERS, **options)


def login_routes(access: Access, store: Store) -> list[HTTPRouteHandler]:
    """The login, its form, and the way out."""

    @get("/login", opt={"open": True}, include_in_schema=False)
    async def login_page(request: Asked) -> Template:
        """Name and password."""
        return page(request, "login.html", store.now_ms, name="", why="", back=_back(request))

    @post("/login", opt={"open": True}, include_in_schema=False)
    async def login(request: Asked) -> Response[Any]:
        """Log in."""
        form = await form_of(request)
        name, back = field(form, "name"), _inside(field(form, "next"))
        try:
            _, cookie = await access.login(request, name[:64], str(form.get("password", "")))
        except (AuthenticationError, RateLimitError) as error:
            return page(
                request, "login.html", store.now_ms, status=error.status, name=name, why=error.message, back=back
            )
        return see_other(back, cookies=[cookie])

    @post("/logout", include_in_schema=False)
    async def logout(request: Asked) -> Response[Any]:
        """Log out."""
        cookie = await access.logout(request, who(request))
        return see_other("/login", cookies=[cookie])

    return [login_page, login, logout]


def _back(request: Asked) -> str:
    return _inside(request.query_params.get("next", ""))


def _inside(address: str) -> str:
    """Only a page of ours: an address without a site in it, by any reading."""
    parts = urlsplit(address)
    plain = address.startswith("/") and not address.startswith("//") and address.isprintable() and "\\" not in address
    return address if plain and not parts.scheme and not parts.netloc and len(address) <= _LONGEST_NEXT else "/"


def refused(request: Asked, error: Exception) -> Response[Any]:
    """Whatever went wrong, as a page: what happened, and what to do."""
    answer = refuse(request, error)
    problem = answer.content
    headers = HEADERS | {name: value for name, value in answer.headers.items() if name in _TOLD}
    if isinstance(error, HttpError) and error.retry_after is not None:
        headers["retry-after"] = answer.headers["retry-after"]
    shown = page(
        request, "error.html", 0, status=problem.status, problem=problem, help=_help(problem.code, problem.status)
    )
    shown.headers |= headers
    return shown


def _help(code: str, status: int) -> str:
    return _HELP.get(code) or (_HELP["invalid_value"] if status in {400, 413, 415} else "")


_TOLD: Final = frozenset({"allow", "x-request-id"})
_HELP: Final = {
    "stale": "Somebody else changed it while you were looking at it. Go back, load the page anew, look at what it says "
    "now, and make your change again: nothing was changed by this attempt.",
    "conflict": "Nothing was changed. Go back, and look at what is there.",
    "csrf": "The page was open for longer than its session. Load it anew and try again: nothing was changed.",
    "cross_site": "Open the dashboard itself, and make the change there: nothing was changed.",
    "invalid_value": "Nothing was changed. Go back and correct it.",
    "not_found": "It may have been renamed or removed: the list has what there is.",
    "store_unavailable": "Requests are served on with what the gateways have in memory, but nothing can be read or "
    "changed here. See whether the database runs, then load the page anew.",
    "internal": "It is on record under the number below. Load the page anew; if that does not help, look into the log.",
}
