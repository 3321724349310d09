"""`/admin/v1/audit`: who changed what."""

from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from gateway.admin.lists import After, Limit, Listing, cursor, place
from gateway.admin.problems import READ, documented
from gateway.admin.sessions import needs
from gateway.core.audit import Entry
from gateway.store.audit import Filter, Head
from gateway.store.store import Store

Moment = Annotated[
    int | None, QueryParameter(ge=0, le=253_402_300_799_999, description="Milliseconds since 1970, UTC.")
]
Text = Annotated[str | None, QueryParameter(max_length=255, description="Exactly this.")]


class AuditEntry(msgspec.Struct, frozen=True):
    """One change: who, from where, what, of which object, and its row before and after, where there was one."""

    sequence: int
    at: int
    actor_kind: str
    actor_id: str
    actor_name: str
    source: str
    action: str
    kind: str
    object_id: str
    object_name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def audit_routes(store: Store) -> list[HTTPRouteHandler]:
    """Two routes."""

    @get("/audit", opt=needs("audit"), responses=documented(*READ), tags=["audit"])
    async def list_entries(
        *,
        kind: Text = None,
        object_id: Text = None,
        action: Text = None,
        actor: Text = None,
        since: Moment = None,
        until: Moment = None,
        limit: Limit = 50,
        after: After = None,
    ) -> Listing[AuditEntry]:
        """Changes, newest first. `actor` is a name; `until` is excluded."""
        begun = place(after, int)
        found = await store.audit.page(
            Filter(kind, object_id, action, actor, since, until),
            before=None if begun is None else int(begun[0]),
            most=limit + 1,
        )
        more = cursor((found[limit - 1].sequence,)) if len(found) > limit else None
        return Listing(tuple(map(_shown, found[:limit])), more)

    @get("/audit/head", opt=needs("audit"), responses=documented(*READ), tags=["audit"])
    async def get_head() -> Head:
        """The last entry's number and seal: noted elsewhere, they show later that nothing was cut off."""
        return await store.audit.head()

    return [list_entries, get_head]


def _shown(entry: Entry) -> AuditEntry:
    rows = {name: _row(getattr(entry, name)) for name in ("before", "after")}
    return AuditEntry(**msgspec.structs.asdict(entry) | rows)


def _row(text: str | None) -> dict[str, Any] | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
