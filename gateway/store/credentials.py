"""What requests are judged by: read whole, or only what changed since, as the audit log tells.

Every change is on record in the transaction that makes it, so the log says which keys to look at again. Its entries are
chained by hash: one that is still where it was shows that it is the same store, with the same past.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store import schema
from gateway.store.find import QUOTA, quota_row, texts
from gateway.store.rows import Changes, CredentialRow, Moment, QuotaRow, Snapshot

AT_ONCE: Final = 2000
"""Rows fetched before other tasks of the loop get a turn."""
MOST_ENTRIES: Final = 2000
"""Of the audit log; whoever is further behind reads everything."""
REVISION: Final = select(schema.revision.c.number)

_ENTRY: Final = select(schema.audit.c.sequence, schema.audit.c.hash)
_TENANTS: Final = select(schema.tenants.c.id, schema.tenants.c.name, schema.tenants.c.zone).where(
    schema.tenants.c.disabled_at.is_(None)
)
_COLUMNS: Final = (
    schema.keys.c.hash,
    schema.keys.c.id,
    schema.keys.c.tenant_id,
    schema.keys.c.expires_at,
    schema.keys.c.scopes,
    schema.keys.c.models,
    schema.keys.c.networks,
)


async def read_all(connection: AsyncConnection, store_id: str, now: int) -> Snapshot:
    """Everything, in a transaction that sees one moment. `now` in ms since 1970: expired keys are left out."""
    last = (await connection.execute(_ENTRY.order_by(schema.audit.c.sequence.desc()).limit(1))).first()
    moment = Moment(await _revision(connection), *((last.sequence, last.hash) if last is not None else ()))
    credentials = await _credentials(connection, _in_force(now), _TENANTS)
    return Snapshot(store_id, moment.revision, credentials, await _quotas(connection), moment)


async def read_changes(connection: AsyncConnection, since: Moment, now: int) -> Changes | None:
    """What changed after an earlier read; None if everything has to be read.

    That is so when too much changed, or when this is not the store that was read then: a backup that was restored.
    """
    log = schema.audit.c
    revision = await _revision(connection)
    then = (await connection.execute(_ENTRY.where(log.sequence == since.sequence))).first()
    if revision < since.revision or then is None or then.hash != since.hash:
        return None
    query = select(log.sequence, log.hash, log.kind, log.object_id).where(log.sequence > since.sequence)
    entries = (await connection.execute(query.order_by(log.sequence).limit(MOST_ENTRIES + 1))).all()
    if len(entries) > MOST_ENTRIES:
        return None
    last = entries[-1] if entries else then
    tenants = {entry.object_id for entry in entries if entry.kind == "tenant"}
    keys = {entry.object_id for entry in entries if entry.kind == "key"}
    which = or_(schema.keys.c.id.in_(keys), schema.keys.c.tenant_id.in_(tenants))
    touched = (await connection.execute(select(schema.keys.c.hash, schema.keys.c.tenant_id).where(which))).all()
    owners = _TENANTS.where(schema.tenants.c.id.in_({row.tenant_id for row in touched}))
    return Changes(
        Moment(revision, last.sequence, last.hash),
        tuple(row.hash for row in touched),
        await _credentials(connection, which & _in_force(now), owners) if touched else (),
        await _quotas(connection) if any(entry.kind == "quota" for entry in entries) else None,
    )


async def _revision(connection: AsyncConnection) -> int:
    return int((await connection.execute(REVISION)).scalar_one())


def _in_force(now: int) -> ColumnElement[bool]:
    keys = schema.keys.c
    return keys.revoked_at.is_(None) & or_(keys.expires_at.is_(None), keys.expires_at > now)


async def _credentials(
    connection: AsyncConnection, which: ColumnElement[bool], tenants: Select[Any]
) -> tuple[CredentialRow, ...]:
    """A hundred thousand keys have few tenants and fewer rules: what they share is kept once."""
    owners = {row.id: (row.id, row.name, row.zone) for row in await connection.execute(tenants)}
    lists: dict[str | None, tuple[str, ...] | None] = {}
    found: list[CredentialRow] = []
    rows = await connection.stream(select(*_COLUMNS).where(which).execution_options(yield_per=AT_ONCE))
    async for some in rows.partitions():
        _add(found, some, owners, lists)
    return tuple(found)


def _add(
    found: list[CredentialRow],
    rows: Sequence[Any],
    owners: dict[str, tuple[str, str, str]],
    lists: dict[str | None, tuple[str, ...] | None],
) -> None:
    for digest, key_id, tenant_id, expires_at, *rules in rows:
        if (owner := owners.get(tenant_id)) is None:  # disabled
            continue
        for text in rules:
            if text not in lists:
                lists[text] = texts(text)
        scopes, models, networks = (lists[text] for text in rules)
        tenant, name, zone = owner
        found.append(CredentialRow(digest, key_id, tenant, name, expires_at, zone, scopes or (), models, networks))


async def _quotas(connection: AsyncConnection) -> tuple[QuotaRow, ...]:
    return tuple(quota_row(row) for row in await connection.execute(QUOTA))
