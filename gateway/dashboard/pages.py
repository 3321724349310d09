"""From what a room knows to a page: the templates, and how they write numbers, times and shares."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from litestar import Request
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.response import Template
from litestar.template.config import TemplateConfig
from markupsafe import Markup

from gateway.admin.sessions import Identity
from gateway.dashboard.assets import address

Asked = Request[Any, Any, Any]

ROOMS: Final = (
    ("/", "Overview"),
    ("/tenants", "Tenants"),
    ("/keys", "Keys"),
    ("/usage", "Usage"),
    ("/audit", "Audit"),
)
NOTHING: Final = "\u2013"
"""Where there is no number."""
_WHO: Final = "who"
_STEPS: Final = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (math.inf, "d", 86_400))
_SOON_S: Final = 2


def _number(value: float, places: int = 0) -> str:
    """With thousands apart: 12,345.6."""
    return f"{value:,.{places}f}"


def _seconds(value: float | None) -> str:
    """A duration with its unit, in the size that people read: 85 ms, 1.2 s, 4 min."""
    if value is None:
        return NOTHING
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 100:  # noqa: PLR2004 - three digits at most
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"  # noqa: PLR2004
    return f"{value / 60:.0f} min"


def _exact(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def relative(ms: float, now_ms: float) -> str:
    """How far from now: "4 min ago", "in 3 d"."""
    seconds = (now_ms - ms) / 1000
    if abs(seconds) < _SOON_S:
        return "now"
    unit, size = next((unit, size) for most, unit, size in _STEPS if abs(seconds) < most)
    amount = f"{abs(seconds) // size:.0f} {unit}"
    return f"{amount} ago" if seconds > 0 else f"in {amount}"


@pass_context
def _when(context: Context, ms: float | None, otherwise: str = "never") -> Markup | str:
    """A time as far from now, and exactly for whoever points at it or moves the focus there."""
    if ms is None:
        return otherwise
    iso = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    return Markup('<time class="when" tabindex="0" datetime="{}">{}<span class="exact"> {}</span></time>').format(
        iso, relative(ms, context["now_ms"]), _exact(ms)
    )


def _part(used: float, limit: float) -> float:
    """Percent of a limit, at most 100, for the length of a bar."""
    return round(min(100.0, 100.0 * used / limit), 1) if limit else 0.0


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"number": _number, "seconds": _seconds, "when": _when, "exact": _exact}
    made.globals |= {"asset": address, "rooms": ROOMS, "part": _part, "nothing": NOTHING}
    return made


ENVIRONMENT: Final = _environment()
TEMPLATES: Final = TemplateConfig(instance=JinjaTemplateEngine.from_environment(ENVIRONMENT))


def remember(request: Asked, identity: Identity) -> None:
    """Who asks, for the rest of this request."""
    request.scope["state"][_WHO] = identity


def who(request: Asked) -> Identity:
    """Who asks: the door let nobody else in."""
    identity: Identity = request.scope["state"][_WHO]
    return identity


def page(request: Asked, template: str, now_ms: int, *, status: int = 200, **context: Any) -> Template:
    """A whole page, for whoever is logged in, if anybody is."""
    identity = request.scope["state"].get(_WHO)
    everywhere = {"identity": identity, "path": request.url.path, "now_ms": now_ms}
    # What answers a form has no address of its own: the one before it stays.
    headers = {"hx-push-url": "false"} if request.method == "POST" else {}
    return Template(
        template_name=template,
        context=everywhere | context,
        status_code=status,
        media_type="text/html",
        headers=headers,
    )


def fragment(template: str, now_ms: float, **context: Any) -> str:
    """A piece of a page, to be put in place of its older self."""
    return ENVIRONMENT.get_template(template).render(now_ms=now_ms, **context)
