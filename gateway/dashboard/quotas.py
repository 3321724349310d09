"""Limits: what they are, what a change of them will do, and the change."""

from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.datastructures import FormMultiDict
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from gateway.context import House
from gateway.core.accounts import UNLIMITED, Limits
from gateway.dashboard.asking import Question, ask, confirmed, done, said, version_of, whole, with_query
from gateway.dashboard.door import field, form_of
from gateway.dashboard.pages import Asked, page, who
from gateway.dashboard.standing import FIELDS, effects
from gateway.dashboard.tenants import TenantPath
from gateway.services.quotas import Standing
from gateway.store.rows import KeyRow, TenantRow
from gateway.store.store import Store
from shared.errors import InvalidRequestError


class Place(msgspec.Struct, frozen=True):
    """Whose limits, as they are now: `version` 0 where nobody has set any."""

    tenant: TenantRow
    key: KeyRow | None
    model: str
    limits: Limits
    version: int
    now: Standing | None
    standard: int = 0
    """Streams that the settings give where nothing else is said; 0 is no bound."""

    @property
    def whose(self) -> str:
        """In words."""
        key = f"key {self.key.name} of {self.tenant.name}" if self.key else self.tenant.name
        return f"{key} with model {self.model}" if self.model else key

    @property
    def address(self) -> str:
        """Where its form is."""
        key = self.key.id if self.key else ""
        return with_query(f"/tenants/{self.tenant.name}/quota", key=key, model=self.model)


def quota_routes(house: House, store: Store) -> list[HTTPRouteHandler]:
    """The form and what it does."""

    @get("/tenants/{tenant:str}/quota", include_in_schema=False)
    async def form_page(request: Asked, tenant: TenantPath) -> Template:
        """The form."""
        found = await _place(house, store, request, tenant)
        return _form(request, store, found, _texts(found.limits))

    @post("/tenants/{tenant:str}/quota", include_in_schema=False)
    async def change(request: Asked, tenant: TenantPath) -> Response[Any]:
        """Set limits, or remove them, once the effect was seen and agreed to."""
        form = await form_of(request)
        found = await _place(house, store, request, tenant)
        clear = field(form, "clear") == "yes"
        try:
            limits = UNLIMITED if clear else _limits(form)
        except InvalidRequestError as error:
            return _form(request, store, found, _entered(form), status=400, why=error.message)
        if not confirmed(form):
            return ask(request, store, form, _question(found, limits, form, clear=clear))
        by, key = who(request).actor, found.key.id if found.key else None
        if clear:
            await store.quotas.clear(found.tenant.id, by=by, key=key, model=found.model, version=version_of(form))
        else:
            await store.quotas.set(found.tenant.id, limits, by=by, key=key, model=found.model, version=version_of(form))
        return await done(request, store, "quota", f"/tenants/{found.tenant.name}")

    return [form_page, change]


async def _place(house: House, store: Store, request: Asked, tenant: str) -> Place:
    row = await store.tenants.one(tenant)
    key, model = said(request, "key", 63), said(request, "model", 255)
    holder = await store.keys.one(key, tenant=row.id) if key else None
    holder_id = holder.id if holder else ""
    rows = {(one.key_id, one.model): one for one in await store.quotas.of_tenant(row.id)}
    quota = rows.get((holder_id, model))
    standings = house.quotas.standings(row.id, row.zone)
    now = next((one for one in standings if (one.key_id, one.model) == (holder_id, model)), None)
    standard = 0 if holder or model else house.settings.limits.tenant_streams
    return Place(row, holder, model, quota.limits if quota else UNLIMITED, quota.version if quota else 0, now, standard)


def _form(
    request: Asked, store: Store, found: Place, entered: dict[str, str], *, status: int = 200, why: str = ""
) -> Template:
    return page(
        request,
        "quota.html",
        store.now_ms,
        status=status,
        place=found,
        entered=entered,
        fields=FIELDS,
        why=why,
    )


def _question(found: Place, limits: Limits, form: FormMultiDict, *, clear: bool) -> Question:
    changes = [(label, _written(found, name, found.limits), _written(found, name, limits)) for name, label in FIELDS]
    changes.append(("Strict", _yes(found.limits.strict), _yes(limits.strict)))
    changed = tuple(change for change in changes if change[1] != change[2])
    none = () if changed or clear else ("These are the limits that it has already.",)
    return Question(
        title=f"{'Remove the limits' if clear else 'Change the limits'} of {found.whose}?",
        effects=none or effects(found.whose, found.limits, limits, found.now),
        button="Remove limits" if clear else "Set limits",
        action=found.address,
        back=found.address,
        fields={**_entered(form), "clear": "yes" if clear else ""},
        changes=changed,
        grave=clear,
    )


def _limits(form: FormMultiDict) -> Limits:
    values = {name: whole(field(form, name), label) for name, label in FIELDS}
    return Limits(**values, strict=field(form, "strict") == "yes")


def _entered(form: FormMultiDict) -> dict[str, str]:
    return {name: field(form, name, 64) for name, _ in FIELDS} | {"strict": field(form, "strict", 8)}


def _texts(limits: Limits) -> dict[str, str]:
    return {name: str(getattr(limits, name) or "") for name, _ in FIELDS} | {"strict": "yes" if limits.strict else ""}


def _written(found: Place, name: str, limits: Limits) -> str:
    limit = getattr(limits, name)
    if limit:
        return f"{limit:,}"
    return f"{found.standard}, by the settings" if name == "streams" and found.standard else "no limit"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
