"""`evenflow audit`: who changed what, and whether anybody tampered with the record."""

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from gateway.cli_common import config_option, json_option, print_json, print_table, shown_time, with_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.core.audit import Entry
    from gateway.store.audit import Head
    from gateway.store.store import Store

EXIT_BROKEN = 1


def _noted(_ctx: click.Context, _param: click.Parameter, value: str | None) -> "Head | None":
    """`17:9f86...`, as the log of a gateway and `verify` show it."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,18}):([0-9a-fA-F]{64})", value, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a number, a colon and a seal of 64 hexadecimal digits")
    from gateway.store.audit import Head  # noqa: PLC0415

    return Head(int(match[1]), match[2].lower())


@click.group()
def audit() -> None:
    """The audit log: every change that an operator made."""


@audit.command("list")
@config_option
@json_option
@click.option("--kind", metavar="KIND", help="Only of this kind: tenant, key, quota, admin, token, session.")
@click.option("--action", metavar="ACTION", help="Only this one, such as key.revoke.")
@click.option("--actor", metavar="NAME", help="Only by whoever has this name.")
@click.option("--object", "object_id", metavar="ID", help="Only of the object with this id.")
@click.option("--before", type=click.IntRange(1), metavar="N", help="Only entries before this number.")
@click.option("--most", type=click.IntRange(1, 10_000), default=50, show_default=True, help="So many, newest first.")
def audit_list(config: str | None, as_json: bool, before: int | None, most: int, **which: Any) -> None:
    """List changes, newest first. With --json each comes with its row before and after."""

    async def read(store: "Store") -> "Sequence[Entry]":
        from gateway.store.audit import Filter  # noqa: PLC0415

        return await store.audit.page(Filter(**which), before=before, most=most)

    entries = with_store(config, read)
    if as_json:
        print_json(entries)
        return
    print_table(
        ("number", "when", "who", "from", "what", "of"),
        [
            (
                *(str(entry.sequence), shown_time(entry.at), f"{entry.actor_kind} {entry.actor_name}".strip()),
                *(entry.source, entry.action, entry.object_name),
            )
            for entry in entries
        ],
    )


@audit.command("verify")
@config_option
@json_option
@click.option(
    "--head", "expected", callback=_noted, metavar="N:SEAL", help="This entry must be there, as it was noted elsewhere."
)
def audit_verify(config: str | None, as_json: bool, expected: "Head | None") -> None:
    """Check every entry against the one before it; exit status 1 at the first that does not hold.

    A log whose end was cut off holds: --head, from the log of a gateway, shows that.
    """
    verdict = with_store(config, lambda store: store.audit.verify(expected=expected))
    if as_json:
        print_json(verdict)
    elif verdict.broken is None:
        click.echo(f"{verdict.entries} entries hold; head {verdict.head.sequence}:{verdict.head.seal}")
    else:
        click.echo(f"evenflow: {verdict.broken.why}; the {verdict.entries} before it hold", err=True)
    if verdict.broken is not None:
        sys.exit(EXIT_BROKEN)
