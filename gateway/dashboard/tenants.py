"""Tenants: who there is, how they are, and everything about one of them."""

from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter
from litestar.response import Template

from gateway.admin.lists import cursor, place
from gateway.context import House
from gateway.core.accounts import Limits
from gateway.core.keys import SCOPES
from gateway.dashboard.asking import Question, ask, confirmed, done, just_made, said, version_of, with_query
from gateway.dashboard.door import field, form_of
from gateway.dashboard.figures import chart, minutes, tenant_tracks
from gateway.dashboard.pages import Asked, fragment, page, who
from gateway.dashboard.standing import TenantLine, account_lines, tenant_lines
from gateway.store.pages import Page
from gateway.store.rows import TenantRow
from gateway.store.store import Store
from gateway.store.usage_report import Question as UsageQuestion
from shared.errors import ConflictError, InvalidRecordError

TenantPath = Annotated[str, PathParameter(max_length=63)]
AT_ONCE: Final = 100
_KEYS: Final = 100
_REQUESTS: Final = 20
_DAYS: Final = 30


class TenantsRoom:
    """The room."""

    def __init__(self, house: House, store: Store) -> None:
        self._house = house
        self._store = store

    def routes(self) -> list[HTTPRouteHandler]:
        """All of them."""
        store = self._store

        @get("/tenants", include_in_schema=False)
        async def tenants(request: Asked) -> Template:
            """The table."""
            return await self._table(request)

        @post("/tenants", include_in_schema=False)
        async def create(request: Asked) -> Response[Any]:
            """Add one."""
            form = await form_of(request)
            name, zone = field(form, "name"), field(form, "zone") or "UTC"
            try:
                row = await store.tenants.create(name, zone=zone, by=who(request).actor)
            except (InvalidRecordError, ConflictError) as error:
                status = 400 if isinstance(error, InvalidRecordError) else 409
                return await self._table(request, status=status, why=f"{error}.", name=name, zone=zone)
            return await done(request, store, "tenant", f"/tenants/{row.name}")

        @get("/tenants/{tenant:str}", include_in_schema=False)
        async def tenant(request: Asked, tenant: TenantPath) -> Template:
            """One of them."""
            return await self.one(request, tenant)

        @post("/tenants/{tenant:str}/state", include_in_schema=False)
        async def set_state(request: Asked, tenant: TenantPath) -> Response[Any]:
            """Shut it out, or let it in again."""
            form = await form_of(request)
            row = await store.tenants.one(tenant)
            shut = field(form, "disabled") == "yes"
            if not confirmed(form):
                return ask(request, store, form, self._about_state(row, shut=shut))
            await store.tenants.set_disabled(row.id, disabled=shut, by=who(request).actor, version=version_of(form))
            return await done(request, store, "tenant", f"/tenants/{row.name}")

        @post("/tenants/{tenant:str}/calendar", include_in_schema=False)
        async def set_calendar(request: Asked, tenant: TenantPath) -> Response[Any]:
            """Give it another calendar."""
            form = await form_of(request)
            row, zone = await store.tenants.one(tenant), field(form, "zone")
            if not confirmed(form):
                return ask(request, store, form, _about_zone(row, zone))
            await store.tenants.set_zone(row.id, zone, by=who(request).actor, version=version_of(form))
            return await done(request, store, "tenant", f"/tenants/{row.name}")

        return [tenants, create, tenant, set_state, set_calendar]

    # -------------------------------------------------------------------------------------------------- live pieces

    async def list_pieces(self, request: Asked) -> Callable[[], dict[str, str]]:
        """The rows of the table that is shown under the same query."""
        rows, search = (await self._rows(request)).rows, said(request, "search", 63)
        if not rows:
            return lambda: {"tenant-rows": fragment("_tenant_rows.html", 0, lines=[], search=search)}
        made: dict[str, tuple[TenantLine, str]] = {}

        def pieces() -> dict[str, str]:
            """Only rows that differ are made anew: this runs every second, in the loop that serves requests."""
            for line in tenant_lines(self._house, rows):
                if line.name not in made or made[line.name][0] != line:
                    made[line.name] = line, fragment("_tenant_rows.html", 0, lines=[line])
            return {"tenant-rows": "".join(html for _, html in made.values())}

        return pieces

    async def tenant_pieces(self, tenant: str) -> tuple[Callable[[], dict[str, str]], str]:
        """What changes on a tenant's page, and its id."""
        row = await self._store.tenants.one(tenant)
        context = await self._accounts(row)

        def pieces() -> dict[str, str]:
            standings = self._house.quotas.standings(row.id, row.zone)
            lines = account_lines(standings, context["names"], context["quotas"])
            now = fragment("_tenant_now.html", 0, line=tenant_lines(self._house, [row])[0])
            return {"accounts": fragment("_accounts.html", 0, accounts=lines, tenant=row), "tenant-now": now}

        return pieces, row.id

    # ------------------------------------------------------------------------------------------------------- pages

    async def _rows(self, request: Asked) -> Page[TenantRow]:
        after = said(request, "after") or None
        return await self._store.pages.tenants(
            search=said(request, "search", 63), after=place(after, str), most=AT_ONCE
        )

    async def _table(
        self, request: Asked, *, status: int = 200, why: str = "", name: str = "", zone: str = "UTC"
    ) -> Template:
        found, search = await self._rows(request), said(request, "search", 63)
        more = "" if found.after is None else with_query("/tenants", search=search, after=cursor(found.after))
        return page(
            request,
            "tenants.html",
            self._store.now_ms,
            status=status,
            lines=tenant_lines(self._house, found.rows),
            search=search,
            paged=bool(said(request, "after")),
            more=more,
            why=why,
            name=name,
            zone=zone,
            query=request.url.query,
        )

    async def one(
        self, request: Asked, tenant: str, *, status: int = 200, why: str = "", entered: dict[str, str] | None = None
    ) -> Template:
        """A tenant's page; `why` a key was not made of what was `entered`."""
        store = self._store
        row = await store.tenants.one(tenant)
        accounts = await self._accounts(row)
        standings = self._house.quotas.standings(row.id, row.zone)
        keys = await store.pages.keys(row.id, after=None, most=_KEYS)
        today = self._house.quotas.periods(row.id, row.zone).day
        first = today - _DAYS + 1
        usage = await store.usage.report(UsageQuestion(("day",), tenant_id=row.id, first=first), most=_DAYS + 1)
        return page(
            request,
            "tenant.html",
            store.now_ms,
            status=status,
            tenant=row,
            line=tenant_lines(self._house, [row])[0],
            accounts=account_lines(standings, accounts["names"], accounts["quotas"]),
            limits=standings[0].limits if standings else Limits(),
            keys=keys.rows,
            more_keys=keys.after is not None,
            scopes=SCOPES,
            days=_by_day({group.day: group.prompt + group.charged for group in usage.groups if group.day}, first),
            requests=(await store.pages.requests(row.id, after=None, most=_REQUESTS)).rows,
            names=accounts["names"],
            entry=await just_made(request, store),
            **self._charts(row, standings[0].limits.streams if standings else 0),
            why=why,
            entered=entered or {},
        )

    def _charts(self, row: TenantRow, streams: int) -> dict[str, Any]:
        """The series of the last 15 minutes, as lines and minute by minute."""
        watch = self._house.pulse
        tracks = tenant_tracks(watch, row.id)
        drawn = {"tokens": chart(watch, tracks["tokens"], 0), "in_flight": chart(watch, tracks["in_flight"], streams)}
        return {"drawn": drawn, "minutes": minutes(watch, tracks, ("tokens", "in_flight", "limited"))}

    async def _accounts(self, row: TenantRow) -> dict[str, Any]:
        keys = await self._store.pages.keys(row.id, after=None, most=_KEYS)
        quotas = await self._store.quotas.of_tenant(row.id)
        return {"names": {key.id: key.name for key in keys.rows}, "quotas": quotas}

    def _about_state(self, row: TenantRow, *, shut: bool) -> Question:
        running = self._house.quotas.standing(row.id, row.zone).streams
        if shut:
            effects = (
                f"{_running(running)} New requests with any key of {row.name} get 401 within a second.",
                "Nothing is deleted: letting it in again makes all its keys work as before.",
            )
        else:
            effects = (
                f"All keys of {row.name} that are in force work again within a second.",
                "Its limits hold as before.",
            )
        return Question(
            title=f"Shut {row.name} out?" if shut else f"Let {row.name} in again?",
            effects=effects,
            button="Shut out" if shut else "Let in",
            action=f"/tenants/{row.name}/state",
            back=f"/tenants/{row.name}",
            fields={"disabled": "yes" if shut else "no"},
            grave=shut,
        )


def _running(count: int) -> str:
    if not count:
        return "Nothing of it runs at this gateway."
    return f"{count} running {'answer goes' if count == 1 else 'answers go'} on to the end."


def _about_zone(row: TenantRow, zone: str) -> Question:
    return Question(
        title=f"Give {row.name} the calendar of {zone}?",
        effects=("Its daily and monthly budgets go by it from its next day on. What was used stays used.",),
        button="Change calendar",
        action=f"/tenants/{row.name}/calendar",
        back=f"/tenants/{row.name}",
        fields={"zone": zone},
        changes=(("Calendar", row.zone, zone),),
    )


def _by_day(tokens: dict[date, int], first: int) -> list[tuple[date, int]]:
    """Every day, those without use too."""
    days = [date.fromordinal(first + number) for number in range(_DAYS)]
    return [(day, tokens.get(day, 0)) for day in days]
