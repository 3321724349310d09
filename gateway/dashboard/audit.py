"""Audit: who changed what, newest first."""

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time
from typing import Any, Final

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream, Template

from gateway.core.audit import Entry
from gateway.core.usage_csv import lines
from gateway.dashboard.asking import said, with_query
from gateway.dashboard.pages import NOTHING, Asked, page
from gateway.store.audit import Filter
from gateway.store.store import Store
from shared.errors import InvalidRequestError

AT_ONCE: Final = 100
_CSV_AT_ONCE: Final = 1000
_NAMES: Final = ("kind", "action", "actor", "object_id")
_DAY_MS: Final = 86_400_000


class Change(msgspec.Struct, frozen=True):
    """An entry, and what of the object's row it changed: field, before, after."""

    entry: Entry
    fields: tuple[tuple[str, str, str], ...]


def audit_routes(store: Store) -> list[HTTPRouteHandler]:
    """The page, and all of it for a spreadsheet."""

    @get("/audit", include_in_schema=False)
    async def audit(request: Asked) -> Template:
        """A page of it."""
        asked, which = _asked(request)
        before = _number(said(request, "before"))
        found = await store.audit.page(which, before=before, most=AT_ONCE + 1)
        shown = found[:AT_ONCE]
        more = with_query("/audit", **asked, before=str(shown[-1].sequence)) if len(found) > AT_ONCE else ""
        return page(
            request,
            "audit.html",
            store.now_ms,
            changes=[Change(entry, changed(entry)) for entry in shown],
            asked=asked,
            more=more,
            paged=before is not None,
            head=await store.audit.head(),
            csv=with_query("/audit.csv", **asked),
        )

    @get("/audit.csv", include_in_schema=False)
    async def csv(request: Asked) -> Stream:
        """The same as CSV, without an end to its pages."""
        _, which = _asked(request)
        first = await store.audit.page(
            which, before=None, most=_CSV_AT_ONCE
        )  # a store that is down shows before the 200
        headers = {"content-disposition": 'attachment; filename="audit.csv"'}
        return Stream(_csv(store, which, first), media_type="text/csv; charset=utf-8", headers=headers)

    return [audit, csv]


async def _csv(store: Store, which: Filter, found: tuple[Entry, ...]) -> AsyncIterator[bytes]:
    yield lines([Entry.__struct_fields__]).encode()
    while found:
        yield lines(msgspec.structs.astuple(entry) for entry in found).encode()
        found = await store.audit.page(which, before=found[-1].sequence, most=_CSV_AT_ONCE)


def _asked(request: Asked) -> tuple[dict[str, str], Filter]:
    """The filters as the address has them, and as the store takes them."""
    asked = {name: said(request, name, 255) for name in (*_NAMES, "from", "to")}
    last = _begins(asked["to"])
    which = Filter(
        **{name: asked[name] or None for name in _NAMES},
        since=_begins(asked["from"]),
        until=None if last is None else last + _DAY_MS,
    )
    return asked, which


def changed(entry: Entry) -> tuple[tuple[str, str, str], ...]:
    """What differs between the row before and after."""
    before, after = (_flat(row) for row in (entry.before, entry.after))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name) and name != "version"]
    return tuple((name, _text(before.get(name)), _text(after.get(name))) for name in names)


def _flat(row: str | None) -> dict[str, Any]:
    """A row's fields; those of a struct within it by their own names."""
    found: dict[str, Any] = {}
    for name, value in msgspec.json.decode(row or "{}", type=dict[str, Any]).items():
        found |= value if isinstance(value, dict) else {name: value}
    return found


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _begins(day: str) -> int | None:
    """The first millisecond of a day, UTC."""
    if not day:
        return None
    try:
        return int(datetime.combine(date.fromisoformat(day), time(), UTC).timestamp() * 1000)
    except ValueError:
        raise InvalidRequestError(f"{day!r} is no day such as 2027-01-31.") from None


def _number(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:  # noqa: PLR2004 - what any database takes
        raise InvalidRequestError("before is a number of an entry.", param="before")
    return int(text)
