"""`evenflow tenant`: who may use the service."""

from typing import TYPE_CHECKING

import click

from gateway.cli_common import config_option, json_option, local_actor, print_json, print_table
from gateway.cli_common import shown_time as _time
from gateway.cli_common import with_store as _with_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.core.accounts import Limits
    from gateway.store.rows import TenantRow


@click.group()
def tenant() -> None:
    """Tenants: who may use the service."""


@tenant.command("create")
@config_option
@json_option
@click.argument("name")
@click.option("--max-streams", type=int, metavar="N", help="Bound on open requests [default: limits.tenant_streams].")
@click.option("--zone", default="UTC", metavar="ZONE", help="Calendar of its budgets, such as Europe/Berlin.")
def tenant_create(config: str | None, as_json: bool, name: str, max_streams: int | None, zone: str) -> None:
    """Add a tenant."""
    limits = None if max_streams is None else _streams(max_streams)
    row = _with_store(config, lambda store: store.tenants.create(name, zone=zone, limits=limits, by=local_actor()))
    _print_tenants([row], as_json)


@tenant.command("list")
@config_option
@json_option
@click.option("--search", default="", metavar="TEXT", help="Only those whose name holds this.")
def tenant_list(config: str | None, as_json: bool, search: str) -> None:
    """List all tenants."""
    rows = _with_store(config, lambda store: store.tenants.all())
    _print_tenants([row for row in rows if search in row.name], as_json)


@tenant.command("zone")
@config_option
@json_option
@click.argument("name")
@click.argument("zone")
def tenant_zone(config: str | None, as_json: bool, name: str, zone: str) -> None:
    """Give a tenant another calendar: its budgets go by it from their next period on."""
    row = _with_store(config, lambda store: store.tenants.set_zone(name, zone, by=local_actor()))
    _print_tenants([row], as_json)


@tenant.command("disable")
@config_option
@json_option
@click.argument("name")
def tenant_disable(config: str | None, as_json: bool, name: str) -> None:
    """Shut all keys of a tenant out, within a second."""
    row = _with_store(config, lambda store: store.tenants.set_disabled(name, disabled=True, by=local_actor()))
    _print_tenants([row], as_json)


@tenant.command("enable")
@config_option
@json_option
@click.argument("name")
def tenant_enable(config: str | None, as_json: bool, name: str) -> None:
    """Let a disabled tenant's keys in again."""
    row = _with_store(config, lambda store: store.tenants.set_disabled(name, disabled=False, by=local_actor()))
    _print_tenants([row], as_json)


def _streams(most: int) -> "Limits":
    from gateway.core.accounts import Limits  # noqa: PLC0415

    return Limits(streams=most)


def _print_tenants(rows: "Sequence[TenantRow]", as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    lines = [(row.name, row.id, _time(row.created_at), row.zone, _time(row.disabled_at)) for row in rows]
    print_table(("tenant", "id", "created", "calendar", "disabled"), lines)
