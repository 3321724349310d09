"""`evenflow usage`: what was used, request by request and added up, and whether it is right."""

import sys
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from gateway.cli_common import (
    config_option,
    json_option,
    load_settings,
    print_json,
    print_table,
    shown_time,
    with_store,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.services.usage_verify import Verdict
    from gateway.store.rows import UsageRow
    from gateway.store.store import Store
    from gateway.store.usage_report import Dimension, Group, Question
    from shared.settings import Settings

DIMENSIONS = ("tenant", "key", "model", "version", "day")
_SUMS = ("requests", "failed", "prompt", "cached", "charged", "generated", "accepted", "proposed", "device_seconds")
_SHOWN = ("requests", "failed", "prompt", "charged", "device_seconds")
_AT_ONCE = 1000


@click.group()
def usage() -> None:
    """Usage: what each request used, what that adds up to, and whether it is right."""


@usage.command("list")
@config_option
@json_option
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--most", type=click.IntRange(1), default=50, show_default=True, help="So many, newest first.")
def usage_list(config: str | None, as_json: bool, tenant: str | None, most: int) -> None:
    """List the last requests with their tokens."""

    async def read(store: "Store") -> "Sequence[UsageRow]":
        tenant_id = None if tenant is None else (await store.tenants.one(tenant)).id
        return await store.usage.rows(tenant_id=tenant_id, most=most)

    rows = with_store(config, read)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("closed", "request", "tenant", "model", "outcome", "prompt", "charged", "generated"),
        [
            (
                *(shown_time(row.closed_at), row.request_id, row.tenant_id, row.model, row.outcome),
                *(str(row.prompt), str(row.charged), str(row.generated)),
            )
            for row in rows
        ],
    )


def _dimensions(_ctx: click.Context, _param: click.Parameter, value: str) -> "tuple[Dimension, ...]":
    """`tenant,day`, each once."""
    named = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if wrong := [name for name in named if name not in DIMENSIONS]:
        raise click.BadParameter(f"{', '.join(wrong)}: it can be any of {', '.join(DIMENSIONS)}")
    return named  # type: ignore[return-value] # as checked


def _day(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """`2026-03-01`, as its ordinal."""
    if value is None:
        return None
    try:
        return date.fromisoformat(value).toordinal()
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a day such as 2026-03-01") from None


@usage.command("report")
@config_option
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, safe to open in a spreadsheet.")
@click.option(
    "--by",
    callback=_dimensions,
    default="tenant",
    show_default=True,
    metavar="A,B",
    help="Any of " + ", ".join(DIMENSIONS),
)
@click.option("--from", "first", callback=_day, metavar="DAY", help="From this day of the tenant's calendar on.")
@click.option("--to", "last", callback=_day, metavar="DAY", help="Up to this day and with it.")
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--key", metavar="NAME", help="Only this key's; --tenant says whose, or give its id.")
@click.option("--model", metavar="MODEL", help="Only this model's.")
def usage_report(config: str | None, as_json: bool, as_csv: bool, by: "tuple[Dimension, ...]", **which: Any) -> None:
    """Add usage up: tokens and seconds of devices, by tenant, key, model, version, day."""
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two formats: choose one")
    if as_csv:

        async def write(store: "Store") -> None:
            from gateway.core.usage_csv import lines  # noqa: PLC0415

            columns = _columns(by)
            click.echo(lines([columns]).encode(), nl=False)  # bytes: line ends are part of the format
            async for groups in _pages(store, await _question(store, by, **which)):
                rows = ([getattr(group, name) for name in columns] for group in groups)
                click.echo(lines(rows).encode(), nl=False)

        with_store(config, write)
        return

    async def read(store: "Store") -> "list[Group]":
        question = await _question(store, by, **which)
        return [group async for groups in _pages(store, question) for group in groups]

    groups = with_store(config, read)
    if as_json:
        print_json([{name: getattr(group, name) for name in _columns(by)} for group in groups])
        return
    print_table((*by, *_SHOWN), [(*(_label(group, name) for name in by), *_shown(group)) for group in groups])


@usage.command("verify")
@config_option
@json_option
@click.option("--no-journal", is_flag=True, help="Leave the stream out: only sums against rows, without NATS.")
def usage_verify(config: str | None, as_json: bool, no_journal: bool) -> None:
    """Compare rows with the stream of records, and sums by day with rows. Exit status 1 if anything differs.

    It changes nothing and may run beside gateways. The stream is read with the identity of this gateway.
    """
    settings = load_settings(config).settings

    async def compare(store: "Store") -> "Verdict":
        from gateway.services.usage_verify import verify  # noqa: PLC0415

        if no_journal:
            return await verify(store.usage, None)
        return await _with_journal(settings, store)

    verdict = with_store(config, compare)
    if as_json:
        print_json(verdict)
    else:
        _print_verdict(verdict, journal=not no_journal)
    if verdict.different:
        sys.exit(1)


async def _question(
    store: "Store",
    by: "tuple[Dimension, ...]",
    *,
    first: int | None,
    last: int | None,
    tenant: str | None,
    key: str | None,
    model: str | None,
) -> "Question":
    from gateway.store.usage_report import Question  # noqa: PLC0415

    tenant_id = None if tenant is None else (await store.tenants.one(tenant)).id
    key_id = None if key is None else (await store.keys.one(key, tenant=tenant)).id
    return Question(by, tenant_id, key_id, model, first, last)


async def _pages(store: "Store", question: "Question") -> "AsyncIterator[tuple[Group, ...]]":
    page = await store.usage.report(question, most=_AT_ONCE)
    yield page.groups
    while page.after is not None:
        page = await store.usage.report(question, after=page.after, most=_AT_ONCE)
        yield page.groups


def _columns(by: "Sequence[str]") -> list[str]:
    named = [
        name
        for dimension in by
        for name in ((f"{dimension}_id", dimension) if dimension in {"tenant", "key"} else (dimension,))
    ]
    return [*named, *_SUMS]


def _label(group: "Group", dimension: str) -> str:
    value = getattr(group, dimension)
    return str(getattr(group, f"{dimension}_id") if value is None else value)


def _shown(group: "Group") -> tuple[str, ...]:
    return (*(str(getattr(group, name)) for name in _SHOWN[:-1]), f"{group.device_seconds:.1f}")


def _print_verdict(verdict: "Verdict", *, journal: bool) -> None:
    if journal and verdict.first:
        click.echo(
            f"Compared from record {verdict.first} of {shown_time(verdict.first_at)} up to record {verdict.applied}: "
            f"{verdict.requests} requests"
        )
        if verdict.pruned or verdict.older:
            click.echo(f"Left out: {verdict.pruned} whose rows are too old to be kept, {verdict.older} closed before")
    elif journal and not verdict.different:
        click.echo("Nothing of the stream has been written to the store yet")
    since = f" of {date.fromordinal(verdict.whole_from)} and later" if verdict.whole_from else ""
    click.echo(f"Compared {verdict.places} sums by day with their rows{since and '; exact are those'}{since}")
    for one in verdict.differences:
        click.echo(f"{one.kind}: {one.what}: {one.detail}")
    if verdict.different > len(verdict.differences):
        click.echo(f"and {verdict.different - len(verdict.differences)} more")
    plural = "" if verdict.different == 1 else "s"
    click.echo(f"{verdict.different or 'No'} difference{plural}")


async def _with_journal(settings: "Settings", store: "Store") -> "Verdict":
    import secrets  # noqa: PLC0415

    from gateway.services.usage_reader import UsageReader  # noqa: PLC0415
    from gateway.services.usage_verify import verify  # noqa: PLC0415
    from shared.bus import Bus  # noqa: PLC0415
    from shared.identity import find_identity  # noqa: PLC0415

    url, identities = _place(settings)
    name = settings.gateway.name
    bus = Bus(name, secrets.token_hex(8))  # an epoch, and with it an inbox, of its own
    await bus.connect(url, identity=find_identity(identities, "gateway", name), credentials=settings.nats.credentials)
    try:
        reader = UsageReader(bus)
        await reader.open()
        await bus.barrier()
        return await verify(store.usage, reader)
    finally:
        await bus.close()


def _place(settings: "Settings") -> tuple[str, str]:
    """Where NATS is, and the identities: those of the settings, else of the server that `evenflow up` runs here."""
    if settings.nats.url:
        return settings.nats.url, settings.nats.identities
    from gateway.up.nats_server import embedded  # noqa: PLC0415

    return embedded(settings.nats)
