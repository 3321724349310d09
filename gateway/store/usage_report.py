"""Sums of usage as people ask for them: grouped by whatever they name, filtered, in pages."""

from collections.abc import Sequence
from datetime import date
from typing import Any, Final, Literal, get_args

import msgspec
from sqlalchemy import Column, ColumnElement, Select, and_, func, literal, select, true, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import daily
from gateway.core.daily import Sums
from gateway.store import schema

Dimension = Literal["tenant", "key", "model", "version", "day"]
DIMENSIONS: Final[tuple[Dimension, ...]] = get_args(Dimension)

_DAYS = schema.usage_days.c
_COLUMNS: Final[dict[Dimension, Column[Any]]] = {
    "tenant": _DAYS.tenant_id,
    "key": _DAYS.key_id,
    "model": _DAYS.model,
    "version": _DAYS.version,
    "day": _DAYS.day,
}


class Question(msgspec.Struct, frozen=True):
    """What is to be added up: `by` what it is grouped, each once, in the order that the answer is sorted by.

    Filters are off where they are `None`. `first` and `last` are days, by ordinal, both included.
    """

    by: tuple[Dimension, ...] = ()
    tenant_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    first: int | None = None
    last: int | None = None


class Group(Sums, frozen=True, kw_only=True):
    """The sums of one group. What it is not grouped by is `None`, and so is a name that is not known any more."""

    tenant_id: str | None = None
    tenant: str | None = None
    key_id: str | None = None
    key: str | None = None
    model: str | None = None
    version: str | None = None
    day: date | None = None


class Page(msgspec.Struct, frozen=True):
    """Groups in order; `after` is where the next page begins, `None` on the last one."""

    groups: tuple[Group, ...]
    after: tuple[str | int, ...] | None


async def report(
    connection: AsyncConnection,
    question: Question,
    *,
    after: Sequence[str | int] | None = None,
    most: int = 1000,
    backwards: bool = False,
) -> Page:
    """One page, of at most `most` groups, of the answer. Usage of days that are not over grows between pages."""
    columns = [_COLUMNS[dimension] for dimension in question.by]
    query = select(*columns, *summed(connection, schema.usage_days)).where(_which(question))
    if columns:
        order = [column.desc() for column in columns] if backwards else columns
        query = query.group_by(*columns).order_by(*order).limit(most + 1)
        if after is not None:
            begun = tuple_(*(literal(value, column.type) for value, column in zip(after, columns, strict=True)))
            query = query.where(tuple_(*columns) < begun if backwards else tuple_(*columns) > begun)
    rows = (await connection.execute(query)).all()
    width = len(columns)
    names = await _names(connection, question.by, [row[:width] for row in rows[:most]])
    groups = tuple(
        Group(*sums_of(row[width:]), **_labels(question.by, row[:width], names))
        for row in rows[:most]
        if row[width]  # all of nothing is no group
    )
    more = len(rows) > most
    return Page(groups, tuple(rows[most - 1][:width]) if more else None)


def summed(connection: AsyncConnection, table: Any, *instead: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    """The columns of `Sums`, the first as `instead` says, the rest added up: SQLite's sum() fails past 2^63."""
    total = func.total if connection.dialect.name == "sqlite" else func.sum
    return [*instead, *(total(table.c[name]) for name in daily.SUMS[len(instead) :])]


def sums_of(values: Sequence[Any]) -> list[Any]:
    """Those columns as `Sums` takes them."""
    *counts, seconds = (value or 0 for value in values)
    return [*(min(int(count), daily.MOST) for count in counts), float(seconds)]


def _which(question: Question) -> ColumnElement[bool]:
    wanted = ((_DAYS.tenant_id, question.tenant_id), (_DAYS.key_id, question.key_id), (_DAYS.model, question.model))
    conditions = [column == value for column, value in wanted if value is not None]
    if question.first is not None:
        conditions.append(_DAYS.day >= question.first)
    if question.last is not None:
        conditions.append(_DAYS.day <= question.last)
    return and_(true(), *conditions)


def _labels(by: Sequence[Dimension], values: Sequence[Any], names: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dimension, value in zip(by, values, strict=True):
        if dimension == "day":
            found["day"] = date.fromordinal(value)
        elif dimension in ("tenant", "key"):
            found |= {f"{dimension}_id": value, dimension: names.get(value)}
        else:
            found[dimension] = value
    return found


async def _names(connection: AsyncConnection, by: Sequence[Dimension], rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    """Names of the tenants and keys of a page, by id; those that are gone have none."""
    found: dict[str, str] = {}
    for dimension, table in (("tenant", schema.tenants), ("key", schema.keys)):
        if dimension in by:
            place = by.index(dimension)
            query: Select[Any] = select(table.c.id, table.c.name).where(table.c.id.in_({row[place] for row in rows}))
            found |= {row.id: row.name for row in await connection.execute(query)}
    return found
