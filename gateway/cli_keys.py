"""`evenflow key`: how tenants' programs show who they are, and what they may do."""

import time
from typing import TYPE_CHECKING, Any

import click

from gateway.cli_common import (
    config_option,
    json_option,
    local_actor,
    print_json,
    print_table,
    seconds,
    shown_time,
    with_store,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.rows import KeyRow

SCOPES = ("inference", "usage")
_DAY_S = 86_400


def _overlap(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """As other durations, or 0."""
    return 0 if value == "0" else seconds(ctx, param, value) or 0


scope_option = click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    help="What it is for; may be repeated.",
)
model_option = click.option(
    "--model", "models", metavar="NAME", multiple=True, help="May use this one, or llama-*; may be repeated."
)
network_option = click.option(
    "--network", "networks", metavar="CIDR", multiple=True, help="May be used from there; may be repeated."
)
expires_option = click.option(
    "--expires-in", callback=seconds, metavar="90d|12h|30m", help="Valid for so long from now."
)
tenant_option = click.option(
    "--tenant", "tenant_name", metavar="NAME", help="Whose key; needed if several tenants have one of that name."
)


@click.group()
def key() -> None:
    """Keys: how a tenant's programs show who they are."""


@key.command("create")
@config_option
@json_option
@click.argument("tenant_name", metavar="TENANT")
@click.argument("name")
@scope_option
@model_option
@network_option
@expires_option
def key_create(
    config: str | None, as_json: bool, tenant_name: str, name: str, expires_in: int | None, **lists: tuple[str, ...]
) -> None:
    """Make a key and print it, this once. Standard output gets the key and nothing else.

    Unless told otherwise it is valid for ever, from everywhere, for every model and everything.
    """
    rules = {what: given for what, given in lists.items() if given}
    row, secret = with_store(
        config,
        lambda store: store.keys.create(tenant_name, name, expires_at=_at(expires_in), by=local_actor(), **rules),
    )
    _print_made(row, secret, "It is taken within half a second and shown only now:", as_json)


@key.command("list")
@config_option
@json_option
@click.argument("tenant_name", metavar="[TENANT]", required=False)
def key_list(config: str | None, as_json: bool, tenant_name: str | None) -> None:
    """List all keys, or one tenant's. The keys themselves are not kept."""
    _print_keys(with_store(config, lambda store: store.keys.all(tenant_name)), as_json)


@key.command("update")
@config_option
@json_option
@click.argument("key_name", metavar="KEY")
@tenant_option
@scope_option
@model_option
@click.option("--all-models", is_flag=True, help="May use every model.")
@network_option
@click.option("--any-network", is_flag=True, help="May be used from everywhere.")
@expires_option
@click.option("--never-expires", is_flag=True, help="Valid for ever.")
def key_update(config: str | None, as_json: bool, key_name: str, tenant_name: str | None, **given: Any) -> None:
    """Change what a key may do, or until when, within a second; what is not given stays."""
    changes = {what: given[what] for what in ("scopes", "models", "networks") if given[what]}
    if given["expires_in"] is not None:
        changes["expires_at"] = _at(given["expires_in"])
    for flag, what in (("all_models", "models"), ("any_network", "networks"), ("never_expires", "expires_at")):
        if given[flag]:
            if what in changes:
                raise click.UsageError(f"--{flag.replace('_', '-')} contradicts another option")
            changes[what] = None
    if not changes:
        raise click.UsageError("nothing to change was given")
    row = with_store(config, lambda store: store.keys.update(key_name, tenant=tenant_name, by=local_actor(), **changes))
    _print_keys([row], as_json)


@key.command("rotate")
@config_option
@json_option
@click.argument("key_name", metavar="KEY")
@tenant_option
@click.option(
    "--overlap",
    callback=_overlap,
    default="24h",
    show_default=True,
    metavar="24h|30m|0",
    help="For so long the old key goes on; 0 ends it at once.",
)
def key_rotate(config: str | None, as_json: bool, key_name: str, tenant_name: str | None, overlap: int) -> None:
    """Replace a key by a new one of the same name that may do the same, and print it, this once."""
    row, secret = with_store(
        config, lambda store: store.keys.rotate(key_name, overlap, tenant=tenant_name, by=local_actor())
    )
    old = f"The old one goes on for {overlap / 3600:g} h at most." if overlap else "The old one has ended."
    _print_made(row, secret, f"{old} The new one is taken within half a second and shown only now:", as_json)


@key.command("revoke")
@config_option
@json_option
@click.argument("key_name", metavar="KEY")
@tenant_option
def key_revoke(config: str | None, as_json: bool, key_name: str, tenant_name: str | None) -> None:
    """Revoke a key: no gateway takes it after a second. One that it replaced goes by its own id."""
    row = with_store(config, lambda store: store.keys.revoke(key_name, tenant=tenant_name, by=local_actor()))
    _print_keys([row], as_json)


def _at(expires_in: int | None) -> int | None:
    return None if expires_in is None else int((time.time() + expires_in) * 1000)


def _print_made(row: "KeyRow", secret: str, told: str, as_json: bool) -> None:
    if as_json:
        import msgspec  # noqa: PLC0415

        print_json({**msgspec.structs.asdict(row), "key": secret})
        return
    until = f", valid until {shown_time(row.expires_at)}" if row.expires_at else ""
    click.echo(f"Key {row.name} of tenant {row.tenant_name}{until}. {told}", err=True)
    click.echo(secret)


def _print_keys(rows: "Sequence[KeyRow]", as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    lines = [
        (
            *(row.tenant_name, row.name, f"{row.display}...", row.id, shown_time(row.created_at)),
            *(shown_time(row.last_used_at), _rules(row), _state(row)),
        )
        for row in rows
    ]
    print_table(("tenant", "key", "begins", "id", "created", "last used", "limited to", "state"), lines)


def _rules(row: "KeyRow") -> str:
    scopes = None if row.scopes == SCOPES else row.scopes
    limited = [" ".join(some) for some in (scopes, row.models, row.networks) if some is not None]
    return "; ".join(limited) or "-"


def _state(row: "KeyRow") -> str:
    if row.revoked_at is not None:
        return f"revoked {shown_time(row.revoked_at)}"
    replaced = "replaced, " if row.replaced_by is not None else ""
    if row.expires_at is None:
        return f"{replaced}valid"
    until = "expired " if row.expires_at <= time.time() * 1000 else "valid until "
    return replaced + until + shown_time(row.expires_at)
