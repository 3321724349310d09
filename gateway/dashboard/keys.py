"""Keys: made, shown once, rotated, given other rules, revoked."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter
from litestar.response import Template
from msgspec.structs import replace

from gateway.admin.lists import cursor, place
from gateway.context import House
from gateway.core.keys import SCOPES
from gateway.dashboard.asking import Question, ask, confirmed, done, just_made, said, version_of, whole, with_query
from gateway.dashboard.door import field, form_of
from gateway.dashboard.pages import Asked, page, who
from gateway.dashboard.tenants import TenantPath, TenantsRoom
from gateway.store.rows import KeyRow
from gateway.store.store import Store
from shared.errors import ConflictError, InvalidRecordError, InvalidRequestError

KeyPath = Annotated[str, PathParameter(max_length=36)]
AT_ONCE: Final = 100
_HOUR_S: Final = 3600
_HOUR_MS: Final = 3_600_000
_APART: Final = re.compile(r"[\s,]+")
_USUAL_OVERLAP_H: Final = 24


def key_routes(house: House, store: Store, tenants: TenantsRoom) -> list[HTTPRouteHandler]:
    """All of them."""

    @get("/keys", include_in_schema=False)
    async def keys(request: Asked) -> Template:
        """All keys, or a tenant's."""
        tenant = said(request, "tenant", 63)
        after = place(said(request, "after") or None, int, str)
        found = await store.pages.keys(tenant or None, after=after, most=AT_ONCE)
        more = "" if found.after is None else with_query("/keys", tenant=tenant, after=cursor(found.after))
        return page(
            request, "keys.html", store.now_ms, keys=found.rows, tenant=tenant, more=more, paged=after is not None
        )

    @get("/keys/{key:str}", include_in_schema=False)
    async def key(request: Asked, key: KeyPath) -> Template:
        """One key."""
        return await _one(request, store, key)

    @post("/tenants/{tenant:str}/keys", include_in_schema=False)
    async def create(request: Asked, tenant: TenantPath) -> Response[Any]:
        """Make one; the page has its secret, this once."""
        form = await form_of(request)
        entered = {name: field(form, name) for name in ("name", "days", "models", "networks", "scope")}
        try:
            days = whole(entered["days"], "days")
            row, secret = await store.keys.create(
                tenant,
                entered["name"],
                by=who(request).actor,
                expires_at=store.now_ms + days * 24 * _HOUR_MS if days else None,
                scopes=_scopes(entered["scope"]),
                models=_listed(entered["models"]),
                networks=_listed(entered["networks"]),
            )
        except (InvalidRecordError, ConflictError, InvalidRequestError) as error:
            status = 409 if isinstance(error, ConflictError) else 400
            return await tenants.one(request, tenant, status=status, why=_sentence(error), entered=entered)
        return page(request, "secret.html", store.now_ms, key=row, secret=secret, old=None)

    @post("/keys/{key:str}/rotate", include_in_schema=False)
    async def rotate(request: Asked, key: KeyPath) -> Response[Any]:
        """Replace it; the page has the new one's secret, this once."""
        form, row = await form_of(request), await store.keys.one(key)
        hours = whole(field(form, "hours"), "hours")
        if not confirmed(form):
            return ask(request, store, form, _about_rotation(row, hours))
        new, secret = await store.keys.rotate(row.id, hours * _HOUR_S, by=who(request).actor, version=version_of(form))
        old = await store.keys.one(row.id)
        return page(request, "secret.html", store.now_ms, key=new, secret=secret, old=old)

    @post("/keys/{key:str}/revoke", include_in_schema=False)
    async def revoke(request: Asked, key: KeyPath) -> Response[Any]:
        """Shut it out for good, once its name was typed."""
        form, row = await form_of(request), await store.keys.one(key)
        question = _about_revoking(row, _running(house, row))
        if not confirmed(form):
            return ask(request, store, form, question)
        if field(form, "typed") != row.name:
            why = f"Type the key's name, {row.name}, to revoke it. Nothing was changed."
            return ask(request, store, form, _with(question, why), status=400)
        await store.keys.revoke(row.id, by=who(request).actor, version=version_of(form))
        return await done(request, store, "key", f"/keys/{row.id}")

    @post("/keys/{key:str}/rules", include_in_schema=False)
    async def change(request: Asked, key: KeyPath) -> Response[Any]:
        """Other rules, or another end."""
        form, row = await form_of(request), await store.keys.one(key)
        entered = {name: field(form, name) for name in ("expires", "models", "networks", "scope")}
        try:
            if not confirmed(form):
                return ask(request, store, form, _about_rules(row, entered))
            await store.keys.update(
                row.id,
                by=who(request).actor,
                version=version_of(form),
                expires_at=_moment(entered["expires"]),
                scopes=_scopes(entered["scope"]),
                models=_listed(entered["models"]),
                networks=_listed(entered["networks"]),
            )
        except (InvalidRecordError, InvalidRequestError) as error:
            return await _one(request, store, key, status=400, why=_sentence(error), entered=entered)
        return await done(request, store, "key", f"/keys/{row.id}")

    return [keys, key, create, rotate, revoke, change]


async def _one(
    request: Asked,
    store: Store,
    key: str,
    *,
    status: int = 200,
    why: str = "",
    entered: dict[str, str] | None = None,
) -> Template:
    row = await store.keys.one(key)
    replaced = None if row.replaced_by is None else await store.keys.one(row.replaced_by)
    shown = entered or {
        "expires": _written(row.expires_at),
        "models": ", ".join(row.models or ()),
        "networks": ", ".join(row.networks or ()),
        "scope": _scope_word(row.scopes),
    }
    return page(
        request,
        "key.html",
        store.now_ms,
        status=status,
        key=row,
        replaced=replaced,
        entered=shown,
        why=why,
        overlap=_USUAL_OVERLAP_H,
        entry=await just_made(request, store),
    )


def _running(house: House, row: KeyRow) -> int:
    """How many of its requests run at this gateway."""
    return sum(
        account.streams for account in house.quotas.core.accounts() if account.scope == (row.tenant_id, row.id, "")
    )


def _about_rotation(row: KeyRow, hours: int) -> Question:
    until = f"goes on for {hours} h, then it is refused" if hours else "is refused at once"
    return Question(
        title=f"Rotate {row.name} of {row.tenant_name}?",
        effects=(
            "A new key of the same name is made, with the same rules and limits. It is shown once.",
            f"The old key, {row.display}…, {until}.",
        ),
        button="Make the new key",
        action=f"/keys/{row.id}/rotate",
        back=f"/keys/{row.id}",
        fields={"hours": str(hours)},
    )


def _about_revoking(row: KeyRow, running: int) -> Question:
    answers = "1 running answer goes" if running == 1 else f"{running} running answers go"
    return Question(
        title=f"Revoke {row.name} of {row.tenant_name}?",
        effects=(
            f"{answers} on to the end; new requests with it get 401 within a second." if running else
            "None of its requests runs at this gateway; new ones get 401 within a second.",
            "There is no way back: its programs need another key.",
        ),
        button="Revoke",
        action=f"/keys/{row.id}/revoke",
        back=f"/keys/{row.id}",
        fields={},
        typed=row.name,
        grave=True,
    )  # fmt: skip


def _about_rules(row: KeyRow, entered: dict[str, str]) -> Question:
    end, models, networks = _moment(entered["expires"]), _listed(entered["models"]), _listed(entered["networks"])
    changes = (
        ("Ends", _written(row.expires_at) or "never", _written(end) or "never"),
        ("May", _scope_word(row.scopes), _scope_word(_scopes(entered["scope"]))),
        ("Models", _listing(row.models), _listing(models)),
        ("From", _listing(row.networks), _listing(networks)),
    )
    return Question(
        title=f"Change {row.name} of {row.tenant_name}?",
        effects=("It holds at every gateway within a second. Answers that run go on to the end.",),
        button="Change",
        action=f"/keys/{row.id}/rules",
        back=f"/keys/{row.id}",
        fields={**entered},
        changes=tuple(change for change in changes if change[1] != change[2]),
    )


def _with(question: Question, why: str) -> Question:

    return replace(question, why=why)


def _listed(text: str) -> tuple[str, ...] | None:
    """Names apart by space or comma; nothing means all."""
    return tuple(part for part in _APART.split(text) if part) or None


def _listing(names: Sequence[str] | None) -> str:
    return ", ".join(names) if names else "all"


def _scopes(word: str) -> tuple[str, ...]:
    """Raises InvalidRequestError for a word that is none of a form's."""
    if word in {"", "all"}:
        return SCOPES
    if word not in SCOPES:
        raise InvalidRequestError(f"A key may do all, or one of {', '.join(SCOPES)}; not {word!r}.", param="scope")
    return (word,)


def _scope_word(scopes: Sequence[str]) -> str:
    return "all" if set(scopes) >= set(SCOPES) else scopes[0]


def _written(ms: int | None) -> str:
    """As a form's field for a time has it, UTC."""
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def _moment(text: str) -> int | None:
    """The same read. Raises InvalidRequestError."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(f"{text!r} is no date and time such as 2027-01-31T12:00.", param="expires") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."
